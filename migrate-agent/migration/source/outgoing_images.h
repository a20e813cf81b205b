// How the state of a job's processes leaves the source: in one stream when they have stopped, or in
// rounds before that, and then what has changed since.
//
// Ordinary memory bypasses CRIU, as far as it can be read separately (private_memory.h,
// shared_memory.h). A round reads it while the processes run, or what was written of it since the
// last round (changed_memory.h), and sends pages with changed content, as for VRAM (decision 2).
// The dump sends what is left (stopped_memory.h). Methods block; one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/migration/source/changed_memory.h"
#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/process/pages/private_memory.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "migrate-agent/transfer/images/sink.h"
#include "migrate-agent/worker/runtime/authorisation.h"
#include "proto/control.pb.h"
#include "src/base/units.h"

namespace gcr::migration {

/// From so much resident memory on, rounds are used without being asked for.
inline constexpr std::uint64_t kWorthRounds = 16 * kMiB;
/// From so much written memory on, or so much that was sent where shared memory is read, there is
/// another round, as long as each finds half as much as the one before.
inline constexpr std::uint64_t kWorthOneMore = 64 * kMiB;

class OutgoingImages {
 public:
  /// Reads only memory of processes that may be moved, also after one has executed another program.
  /// `scratch` is a directory of this migration on tmpfs. With a `plugin`, CRIU works where the
  /// processes' control groups allow the devices that they have: called before
  /// SourceJob::enter_group(). `process` outlives this object.
  static Result<OutgoingImages> create(const criu::Command& criu, SourceJob& process,
                                       std::filesystem::path scratch,
                                       worker::Permissions permissions,
                                       const proto::MigrateRequest& request,
                                       std::uint64_t resident_bytes,
                                       std::shared_ptr<const criu::Plugin> plugin);

  bool in_rounds() const { return in_rounds_; }
  /// Whether images need another round before the last one, even if VRAM does not.
  bool lacks_round() const;

  /// How much the rounds have sent.
  std::uint64_t early_bytes() const { return early_bytes_; }

  /// Why there are rounds, or none.
  const std::string& reason() const { return reason_; }

  /// A round, while the processes run. What cannot be read any more is zeros until the last round:
  /// the process has given it back, or executes another program. A process that was born meanwhile
  /// is asked about like any other.
  Status round(images::Sink& sink);

  /// What the rounds have learnt of a process; null if nothing.
  const process::KnownMemory* known(pid_t pid) const;

  /// Starts CRIU for dump().
  Status prepare();
  bool prepared() const { return prepared_.has_value(); }

  /// The private memory of stopped processes that does not go through CRIU.
  process::PrivateMemory private_memory() const { return process::PrivateMemory(pid_, known_); }

  /// Dumps and sends everything, with files `renamed`; the process is stopped afterwards. Gives the
  /// rights of all threads, which may be moved. `look`: see SourceJob::dump(); it asks about every
  /// process.
  Result<std::vector<process::ThreadRights>> dump(SourceJob& process, const LastCheck& last,
                                                  images::Sink& sink,
                                                  const memory_files::Renamed& renamed);

 private:
  OutgoingImages(criu::Command criu, SourceJob& process, std::filesystem::path scratch,
                 worker::Permissions permissions);
  process::MayMove may_move() const;
  Status send_private(images::Sink& sink);
  Status send_shared(images::Sink& sink);

  criu::Command criu_;
  pid_t pid_;
  criu::DumpOptions options_;
  std::vector<UniqueFd> device_groups_;  ///< that options_ refer to
  std::filesystem::path scratch_;
  worker::Permissions permissions_;
  bool in_rounds_ = false;
  std::string reason_;
  unsigned rounds_ = 0;
  std::uint64_t early_bytes_ = 0;
  std::uint64_t shared_bytes_ = 0;  ///< that the last round has read
  std::uint64_t sent_ = 0;          ///< by the last round
  std::uint64_t sent_before_ = 0;   ///< by the round before it
  ChangedMemory changed_;
  std::uint64_t written_before_ = 0;  ///< the round before the last one had found written
  std::map<pid_t, process::KnownMemory> known_;  ///< of processes with tracked memory
  std::optional<criu::PreparedDump> prepared_;
};

}  // namespace gcr::migration

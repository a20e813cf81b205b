// How the state of a job's processes leaves the source: in one stream when they have stopped, or in
// rounds before that, and then what has changed since.
//
// With a kernel that tells which pages a process has (6.7 and newer), a round reads the memory that
// goes beside CRIU while the processes run, or what was written of it since the round before
// (changed_memory.h), and sends the pages whose content is not what was sent last, as for VRAM
// (decision 2). Else a round is a pre-dump by CRIU, which needs a kernel that
// tracks which pages are written (soft-dirty) and goes through tmpfs on both sides. Methods block;
// one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "migrate-agent/migration/source/changed_memory.h"
#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/process/pages/mappings.h"
#include "migrate-agent/process/pages/private_memory.h"
#include "migrate-agent/process/pages/shared_memory.h"
#include "migrate-agent/transfer/images/sink.h"
#include "migrate-agent/worker/runtime/authorisation.h"
#include "proto/control.pb.h"
#include "src/base/read_memory.h"
#include "src/base/units.h"

namespace gcr::migration {

/// From so much resident memory on, rounds are used without being asked for; pre-dumps, which stop
/// the processes for moments, from half a second of dumping on.
inline constexpr std::uint64_t kWorthRounds = 16 * kMiB;
inline constexpr std::uint64_t kWorthPreDumps = kGiB;
/// From so much written memory on, or so much that was sent where shared memory is read, there is
/// another round, as long as each finds half as much as the one before.
inline constexpr std::uint64_t kWorthOneMore = 64 * kMiB;

class OutgoingImages {
 public:
  /// Reads memory of processes that may be moved alone, whatever they have become meanwhile.
  /// kRefused if rounds are asked for and the kernel cannot do it. `scratch` is a directory of this
  /// migration on tmpfs. With a `plugin`, CRIU works where the processes' control groups allow the
  /// devices that they have: called before SourceJob::enter_group().
  static Result<OutgoingImages> create(const criu::Command& criu, SourceJob& process,
                                       std::filesystem::path scratch,
                                       worker::Permissions permissions,
                                       const proto::MigrateRequest& request,
                                       std::uint64_t resident_bytes,
                                       std::shared_ptr<const criu::Plugin> plugin);

  bool in_rounds() const { return way_ != Way::kStream; }
  /// Whether there shall be more rounds before the last one, whatever VRAM needs.
  bool lacks_round() const;

  /// How much the rounds have sent.
  std::uint64_t early_bytes() const { return early_bytes_; }

  /// Why this way was chosen.
  const std::string& reason() const { return reason_; }

  /// A round, while the processes run. If a pre-dump fails, images are sent as a stream from then
  /// on, and reason() says why.
  Status round(images::Sink& sink);

  /// What the rounds have learnt of a process; null if nothing.
  const process::KnownMemory* known(pid_t pid) const;

  /// Starts CRIU for dump(). Another pre-dump undoes it.
  Status prepare();
  bool prepared() const { return prepared_.has_value(); }

  /// The memory that does not go through CRIU; null if the kernel cannot leave it out.
  std::optional<process::PrivateMemory> beside_criu() const;

  /// Dumps and sends everything, with files `renamed`; the process is stopped afterwards. Gives the
  /// rights of all threads, which may be moved. `look`: see SourceJob::dump(); it asks about every
  /// process.
  Result<std::vector<process::ThreadRights>> dump(SourceJob& process, const LastLook& last,
                                                  images::Sink& sink,
                                                  const memory_files::Renamed& renamed);

 private:
  OutgoingImages(criu::Command criu, SourceJob& process, std::filesystem::path scratch,
                 worker::Permissions permissions);
  Result<ReadMemory> open_memory(pid_t pid) const;
  Status open_memories();
  Result<ReadMemory> memory_of(pid_t pid) const;
  process::MayMove may_move() const;
  Status send_memory(images::Sink& sink);
  Result<AddressRanges> send_early(images::Sink& sink, pid_t pid,
                                   const AddressRanges& mappings) const;
  void begin_shared(images::Sink& sink) const;
  Status send_shared_maps(images::Sink& sink) const;
  Status send_last(images::Sink& sink, const std::string& name, pid_t pid,
                   const AddressRanges& pages, bool check_all) const;
  Status pre_dump(images::Sink& sink);
  std::filesystem::path directory_of_round(unsigned round) const;

  criu::Command criu_;
  pid_t pid_;
  criu::DumpOptions options_;
  std::vector<UniqueFd> device_groups_;  ///< that options_ refer to
  std::filesystem::path scratch_;
  worker::Permissions permissions_;
  enum class Way { kStream, kMemory, kPreDumps } way_ = Way::kStream;
  std::string reason_;
  unsigned rounds_ = 0;
  std::uint64_t early_bytes_ = 0;
  std::uint64_t shared_bytes_ = 0;  ///< that the last round has read
  std::uint64_t sent_ = 0;          ///< by the last round
  std::uint64_t sent_before_ = 0;   ///< by the round before it
  ChangedMemory changed_;
  std::uint64_t written_before_ = 0;  ///< the round before the last one had found written
  using SharedPages = std::map<std::uint32_t, AddressRanges>;  ///< of memories, by inode
  Result<SharedPages> send_shared(images::Sink& sink,
                                  const std::vector<process::SharedMemory>& memories,
                                  bool last) const;
  struct Shared {
    std::mutex mutex;
    std::map<pid_t, process::KnownMemory> known;  ///< of processes with tracked memory
    std::map<pid_t, AddressRanges> left_out;      ///< from CRIU's dump
    std::map<pid_t, ReadMemory> memories;         ///< of all, from before CRIU's dump
    /// Of each that CRIU has asked about; and how that begins, while there is a dump.
    std::map<pid_t, std::shared_future<Result<AddressRanges>>> sent_early;
    std::function<std::shared_future<Result<AddressRanges>>(pid_t, const AddressRanges&)> begin;
    std::vector<criu::launch::SharedMemoryId> shared_left_out;  ///< from CRIU's dump
    std::shared_future<Result<SharedPages>> shared_sent;        ///< likewise early
    std::function<void()> begin_shared;
  };
  /// With the thread that CRIU asks during the dump.
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::optional<criu::PreparedDump> prepared_;
};

}  // namespace gcr::migration

// How CRIU's images leave the source: by one dump whose images are sent while CRIU writes them, or
// in rounds (pre-dumps while the process runs, then a dump of the pages written since).
//
// Rounds need a kernel that tracks dirty pages, and go through tmpfs on both sides; they save the
// time for memory that is not written. A dump writes about 2 GB/s, so rounds are chosen from
// kWorthRounds of resident memory on. Methods block; one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "migrate-agent/images/sink.h"
#include "migrate-agent/source/source_job.h"
#include "proto/control.pb.h"
#include "src/base/units.h"

namespace gcr::agent {

/// Below this, half a second of dumping, rounds are used only on request.
inline constexpr std::uint64_t kWorthRounds = kGiB;

class OutgoingImages {
 public:
  /// kRefused if rounds are asked for and the kernel cannot do it. `scratch` is a directory of this
  /// migration on tmpfs.
  static Result<OutgoingImages> create(const criu::Command& criu, const SourceJob& process,
                                       std::filesystem::path scratch,
                                       const proto::MigrateRequest& request,
                                       std::uint64_t resident_bytes);

  bool in_rounds() const { return in_rounds_; }

  /// Why this way was chosen.
  const std::string& reason() const { return reason_; }

  /// Pre-dumps and sends what was dumped, while the process runs. If that fails, images are sent
  /// as a stream from then on, and reason() says why.
  void round(images::Sink& sink);

  /// Starts CRIU for dump(). Another round() undoes it.
  Status prepare();
  bool prepared() const { return prepared_.has_value(); }

  /// Dumps and sends everything, with files `renamed`; the process is stopped afterwards. Gives the
  /// rights of all
  /// threads.
  Result<std::vector<proto::Credentials>> dump(SourceJob& process, images::Sink& sink,
                                               const memory_files::Renamed& renamed);

 private:
  OutgoingImages(criu::Command criu, const SourceJob& process, std::filesystem::path scratch)
      : criu_(std::move(criu)),
        pid_(process.pid()),
        options_{process.group().directory_for_criu(), process::OutsideTcp::kRefuse},
        scratch_(std::move(scratch)) {}
  Status pre_dump(images::Sink& sink);
  std::filesystem::path directory_of_round(unsigned round) const;

  criu::Command criu_;
  pid_t pid_;
  criu::DumpOptions options_;
  std::filesystem::path scratch_;
  bool in_rounds_ = false;
  std::string reason_;
  unsigned rounds_ = 0;
  std::optional<criu::PreparedDump> prepared_;
};

}  // namespace gcr::agent

// Examines a member that was not started under the preload library and so moves through the driver
// alone (design decision 23): the expected downtime, and shared memory that can only be inferred
// from outside.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/gpu/allocations/lister.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::preflight {

/// A member that moves through the driver alone.
struct DriverAlone {
  pid_t pid = 0;
  std::map<Uuid, std::uint64_t>
      vram;  ///< upper bounds in bytes; the driver copies it to ordinary memory
  std::chrono::milliseconds downtime{};  ///< expected, approximately

  std::uint64_t vram_bytes() const;
};

/// Rates at which the driver moves VRAM into main memory and back (measured on an H200). In between
/// the content is read, sent and written like other memory: at the link's rate, or at about
/// kMemoryBytesPerSecond.
inline constexpr double kCheckpointBytesPerSecond = 2.4e9;
inline constexpr double kRestoreBytesPerSecond = 7e9;
inline constexpr double kMemoryBytesPerSecond = 4e9;

/// Estimates the downtime of a job with this much VRAM that the driver moves and this much other
/// memory. `link_bytes_per_s` 0: unknown.
std::chrono::milliseconds slow_downtime(std::uint64_t vram_bytes, std::uint64_t memory_bytes,
                                        std::uint64_t link_bytes_per_s);

/// Adds "unseen-memory" for processes that share memory with the member or may, as far as can be
/// seen from outside: shared memory makes the driver's restore fail after a checkpoint that
/// succeeded. `members`: all of the job; `shared`: the memory that members under the library share.
/// Queries other processes' doors. Blocks.
void check_unseen_memory(const std::vector<pid_t>& members, const gpu::SameMemory& shared,
                         findings::Findings& findings);

/// Adds "no-library" or "no-library-slow", and "downtime-limit".
void check_slow_downtime(const DriverAlone& member, const proto::MigrateRequest& request,
                         findings::Findings& findings);

}  // namespace gcr::preflight

// A member that was not started under the preload library, and moves through the driver alone
// (design decision 23): what that takes, and what nobody in the process can tell.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/gpu/allocations/same_memory.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::preflight {

struct DriverAlone {
  pid_t pid = 0;
  std::map<Uuid, std::uint64_t> vram;    ///< bytes, at most; the driver makes ordinary memory of it
  std::chrono::milliseconds downtime{};  ///< expected, about

  std::uint64_t vram_bytes() const;
};

/// The driver brings VRAM into main memory and back at these rates (measured on an H200). In
/// between it is read, sent and written like other memory: at the link's rate, or about this one.
inline constexpr double kCheckpointBytesPerSecond = 2.4e9;
inline constexpr double kRestoreBytesPerSecond = 7e9;
inline constexpr double kMemoryBytesPerSecond = 4e9;

/// About how long a job stands still with so much VRAM in the driver's hands, and so much memory
/// besides. `link_bytes_per_s`: 0: not known.
std::chrono::milliseconds slow_downtime(std::uint64_t vram_bytes, std::uint64_t memory_bytes,
                                        std::uint64_t link_bytes_per_s);

/// "unseen-memory": what shares memory with the member, or could, as far as it can be seen from
/// outside: memory that is shared makes the driver's restore fail after a checkpoint that said OK.
/// `members`: all of the job; `shared`: what those under the library share. Asks other processes'
/// doors. Blocks.
void check_unseen_memory(const std::vector<pid_t>& members, const gpu::SameMemory& shared,
                         findings::Findings& findings);

/// "no-library" or "no-library-slow"; "downtime-limit".
void check_slow_downtime(const DriverAlone& member, const proto::MigrateRequest& request,
                         findings::Findings& findings);

}  // namespace gcr::preflight

// Queues of AMD GPUs that a dump has stopped. CRIU's plugin stops those of a process (KFD's
// PROCESS_INFO) before it looks at them and lets them go on (UNPAUSE) at the end, but not if the
// dump fails, or is killed, in between.
#pragma once

#include <linux/ioctl.h>

#include <cstdint>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::criu {

/// AMDKFD_IOC_CRIU_OP of linux/kfd_ioctl.h, which not every system's headers can include.
struct KfdRequest {
  std::uint64_t devices = 0;
  std::uint64_t buffers = 0;
  std::uint64_t private_data = 0;
  std::uint64_t private_data_bytes = 0;
  std::uint32_t device_count = 0;
  std::uint32_t buffer_count = 0;
  std::uint32_t object_count = 0;
  std::uint32_t pid = 0;
  std::uint32_t op = 0;
};
inline constexpr unsigned long kKfdCriuOp = _IOWR('K', 0x22, KfdRequest);
inline constexpr std::uint32_t kKfdUnpause = 2;  ///< an `op`, which needs nothing else

/// Lets them go on. Success too if none is stopped, or the process has no such GPU open. Traces its
/// first thread for a moment: no other tracer, and no frozen group of version 1, may have it.
Status let_queues_go_on(const procfs::Process& process);

}  // namespace gcr::criu

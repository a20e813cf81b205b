// Memory without a name that processes map to share it (MAP_SHARED | MAP_ANONYMOUS), such as the
// page-locked memory of the NVIDIA driver: which of it need not go through CRIU, whose dump and
// restore use one thread.
//
// Devices and other processes write to it without a fault in any page table, so nothing tells what
// was written: it is read by content. It is read as the file that it is, independent of who maps it
// where: a page that is not there is not read, and is not made by reading.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "migrate-agent/process/pages/process_memory.h"
#include "src/base/address_ranges.h"
#include "src/base/read_memory.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

/// Memory that is larger goes through CRIU.
inline constexpr std::uint64_t kMostSharedBytes = std::uint64_t{1} << 39;

struct SharedMemory {
  std::uint64_t device = 0;
  std::uint32_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<const UniqueFd> file;  ///< the memory, to be read
};

/// What `pids`, the processes of a job, map of such memory, once each, ascending by inode. Without
/// what CRIU has to carry: memory to which one of them has a descriptor open, memory of processes
/// for which the kernel writes on its own (io_submit), and what is too small to matter or too large
/// for a restore. What of it cannot be opened, because the kernel forbids it or a process is gone,
/// is not there either; an error is what `may_move` says of a process whose memory was opened.
/// Needs CAP_CHECKPOINT_RESTORE.
Result<std::vector<SharedMemory>> shared_memories(const std::vector<pid_t>& pids,
                                                  const MayMove& may_move);

/// The pages that are there, as offsets; swapped-out ones too. All others read as zeros.
Result<AddressRanges> pages_of(const SharedMemory& memory);

/// Reads at offsets; zeros where nothing is. It may outlive `memory`.
ReadMemory reader_of(const SharedMemory& memory);

}  // namespace gcr::process

// Gives a process's pages of zeros back to the kernel before its memory is dumped.
//
// The driver's checkpoint puts hundreds of MiB of context memory into the process, nearly all of it
// zeros; dumping, moving and restoring them by CRIU would cost more than everything else.
//
// Nothing may write to a page between its check and its release, or the write would be lost. So all
// threads except the one that drops them are held meanwhile. Two kinds of writers are not threads
// of the process:
// - A device for which the pages are pinned would keep using the old page. Do this only after the
//   control checkpoint, when nothing is pinned for a GPU any more; other pinners (RDMA, io_uring)
//   are refused in preflight, and a process with an asynchronous I/O ring is left as it is.
// - Another process with process_vm_writev: it would have to know when to write, from shared memory
//   or a connection that preflight refuses.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/process/pages/mappings.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"

namespace gcr::process {

struct DroppedPages {
  std::uint64_t scanned_bytes = 0;
  std::uint64_t dropped_bytes = 0;
  std::chrono::nanoseconds held{0};      ///< how long the threads were stopped
  std::chrono::nanoseconds duration{0};  ///< of everything
};

/// Drops the pages of zeros in the private anonymous memory of `process`, behind `access`, which
/// may be in a PID namespace below the caller's. Its CUDA is checkpointed. It reads the same
/// afterwards and runs on, as it does after a failure: then some of the zeros may be gone. Memory
/// that is locked, shared, backed by a file or watched by userfaultfd is left alone, stacks that
/// grow too. Whole mappings of which next to nothing is left are marked for huge pages: reading the
/// zeros again, as the control restore does, then costs one fault for each 2 MiB.
///
/// Mappings in `left_out`, ascending, keep their zeros, because the sender of them leaves zeros out
/// anyway. They are marked by a sample of their pages. With nothing else to look through, no thread
/// is stopped.
///
/// If the caller dies meanwhile, the whole process stays stopped by SIGSTOP: the access's thread in
/// it may be in the middle of a request. Before the process is continued, that thread alone must
/// finish it.
/// Needs the right to ptrace; kPermissionDenied if another process traces it. Blocks for tens of
/// milliseconds; where `known` is not null, for those parts of memory alone that are not tracked.
Result<DroppedPages> drop_zero_pages(gpu::GpuAccess& access, const procfs::Process& process,
                                     const AddressRanges& left_out = {},
                                     const KnownMemory* known = nullptr);

}  // namespace gcr::process

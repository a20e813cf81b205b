#include "migrate-agent/gpu/allocations/same_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace gcr::gpu {
namespace {

/// kcmp's answers: 0 the same, 1 less, 2 greater; others and errors have no order.
long compare(int ours, pid_t pid, int theirs) {
  return ::syscall(SYS_kcmp, ::getpid(), pid, KCMP_FILE, ours, theirs);
}

}  // namespace

SameMemory::Known::const_iterator SameMemory::place(pid_t pid, int descriptor) const {
  return std::lower_bound(known_.begin(), known_.end(), descriptor,
                          [pid](const Known::value_type& known, int theirs) {
                            return compare(known.first.get(), pid, theirs) == 1;
                          });
}

Result<std::uint64_t> SameMemory::number(int descriptor) {
  const auto at = place(::getpid(), descriptor);
  if (at != known_.end()) {
    const long order = compare(at->first.get(), ::getpid(), descriptor);
    if (order < 0) return Error::from_errno(errno, "cannot compare descriptors of VRAM (kcmp)");
    if (order == 0) return at->second;
  }
  UniqueFd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy) return Error::from_errno(errno, "cannot copy a descriptor of VRAM");
  const std::uint64_t number = known_.size() + 1;
  known_.emplace(at, std::move(copy), number);
  return number;
}

std::optional<std::uint64_t> SameMemory::find(pid_t pid, int descriptor) const {
  const auto at = place(pid, descriptor);
  if (at == known_.end() || compare(at->first.get(), pid, descriptor) != 0) return std::nullopt;
  return at->second;
}

}  // namespace gcr::gpu

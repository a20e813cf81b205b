#include "migrate-agent/gpu/allocations/lister.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace gcr::gpu {
namespace {

/// For a process that frees buffers all the time.
constexpr unsigned kAttempts = 100;

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

/// An allocation that is freed between the listing and the taking shows as kNotFound: then all is
/// listed again.
Result<Lister::Listing> Lister::list(MemberId member, gpu::GpuAccess& access,
                                     const Wanted& wanted) {
  Listing listing{.listed = {member, {}}, .taken = {}};
  for (unsigned attempt = 1;; ++attempt) {
    GCR_ASSIGN(listing.listed.now, access.allocations());
    std::vector<std::uint64_t> ids;
    for (const LocalAllocation& one : listing.listed.now) {
      const bool unknown = one.shared && !numbers_.contains({member, one.local_id});
      if (unknown || wanted(one)) ids.push_back(one.local_id);
    }
    auto taken = access.take(ids);
    if (!taken && taken.error().code() == Code::kNotFound && attempt < kAttempts) continue;
    if (!taken) return taken.error();
    listing.taken = std::move(*taken);
    break;
  }
  for (const auto& [allocation, descriptor] : listing.taken) {
    if (!allocation.shared) continue;
    GCR_ASSIGN(const std::uint64_t number, shared_.number(descriptor.get()));
    numbers_[{member, allocation.local_id}] = number;
  }
  for (LocalAllocation& one : listing.listed.now) {
    const auto number = numbers_.find({member, one.local_id});
    if (number != numbers_.end()) one.memory = number->second;
  }
  return listing;
}

}  // namespace gcr::gpu

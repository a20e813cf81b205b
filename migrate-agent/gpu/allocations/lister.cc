#include "migrate-agent/gpu/allocations/lister.h"

namespace gcr::gpu {
namespace {

/// For a process that frees buffers all the time.
constexpr unsigned kAttempts = 100;

}  // namespace

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

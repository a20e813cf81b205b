#include "migrate-agent/job/job.h"

#include <errno.h>
#include <fcntl.h>

namespace gcr::job {

std::optional<AllocationId> Job::find(const Mapping& mapping) const {
  const auto found = by_mapping_.find(mapping);
  return found == by_mapping_.end() ? std::nullopt : std::optional(found->second);
}

Job::Changes Job::follow(MemberId member, std::span<const LocalAllocation> now,
                         const SameAs& same_as) {
  Changes changes;
  std::set<std::uint64_t> present;
  for (const LocalAllocation& local : now) {
    present.insert(local.local_id);
    const Mapping mapping{member, local.local_id};
    if (by_mapping_.contains(mapping)) continue;
    const auto known = same_as ? same_as(local) : std::nullopt;
    const AllocationId id = known ? *known : AllocationId{++last_id_};
    by_mapping_.emplace(mapping, id);
    if (known) changes.remapped.insert(id);
    allocations_.try_emplace(id, Allocation{id, local.gpu, local.size_bytes, {}})
        .first->second.mapped_by.push_back(mapping);
  }
  for (auto at = by_mapping_.lower_bound({member, 0});
       at != by_mapping_.end() && at->first.member == member;) {
    const auto [mapping, id] = *at;
    ++at;
    if (present.contains(mapping.local_id)) continue;
    by_mapping_.erase(mapping);
    std::vector<Mapping>& left = allocations_.at(id).mapped_by;
    std::erase(left, mapping);
    changes.remapped.insert(id);
    if (!left.empty()) continue;
    changes.remapped.erase(id);
    changes.removed.insert(id);
    allocations_.erase(id);
  }
  return changes;
}

/// All or nothing.
bool Job::map(AllocationId id, const std::vector<Mapping>& mapped_by) {
  for (std::size_t i = 0; i < mapped_by.size(); ++i) {
    if (mapped_by[i].member.value < members_ && by_mapping_.emplace(mapped_by[i], id).second) {
      continue;
    }
    while (i-- > 0) by_mapping_.erase(mapped_by[i]);
    return false;
  }
  return !mapped_by.empty();
}

bool Job::add(Allocation allocation) {
  const AllocationId id = allocation.id;
  if (allocations_.contains(id) || !map(id, allocation.mapped_by)) return false;
  allocations_.emplace(id, std::move(allocation));
  return true;
}

bool Job::remap(AllocationId id, std::vector<Mapping> mapped_by) {
  const auto found = allocations_.find(id);
  if (found == allocations_.end()) return false;
  std::vector<Mapping>& before = found->second.mapped_by;
  for (const Mapping& mapping : before) by_mapping_.erase(mapping);
  const bool mapped = map(id, mapped_by);
  if (mapped) {
    before = std::move(mapped_by);
  } else {
    map(id, before);
  }
  return mapped;
}

bool Job::remove(AllocationId id) {
  const auto found = allocations_.find(id);
  if (found == allocations_.end()) return false;
  for (const Mapping& mapping : found->second.mapped_by) by_mapping_.erase(mapping);
  allocations_.erase(found);
  return true;
}

Result<MemberDescriptors> Job::split(Descriptors descriptors) const {
  MemberDescriptors split;
  for (auto& [id, descriptor] : descriptors) {
    const std::vector<Mapping>& mapped_by = allocations_.at(id).mapped_by;
    for (const Mapping& mapping : mapped_by) {
      const bool last = &mapping == &mapped_by.back();
      UniqueFd own(last ? descriptor.release() : ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
      if (!own) return Error::from_errno(errno, "cannot copy a descriptor of VRAM");
      split[mapping.member].emplace_back(mapping.local_id, std::move(own));
    }
  }
  return split;
}

}  // namespace gcr::job

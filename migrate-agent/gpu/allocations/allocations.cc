#include "migrate-agent/gpu/allocations/allocations.h"

#include <errno.h>
#include <fcntl.h>

namespace gcr::gpu {

proto::Buffer to_message(const Allocation& allocation) {
  proto::Buffer message;
  message.set_id(allocation.id.value);
  message.set_size_bytes(allocation.size_bytes);
  message.set_gpu_uuid(to_bytes(allocation.gpu));
  if (allocation.host_node) message.set_host_node(*allocation.host_node);
  for (const Mapping& mapping : allocation.mapped_by) {
    proto::Mapping& out = *message.add_mapped_by();
    out.set_member(mapping.member.value);
    out.set_local_id(mapping.local_id);
  }
  return message;
}

Allocation from_message(const proto::Buffer& message) {
  Allocation allocation{.id = {message.id()},
                        .gpu = to_uuid(message.gpu_uuid()),
                        .size_bytes = message.size_bytes(),
                        .mapped_by = {}};
  if (message.has_host_node()) allocation.host_node = message.host_node();
  for (const proto::Mapping& mapping : message.mapped_by()) {
    allocation.mapped_by.push_back({{mapping.member()}, mapping.local_id()});
  }
  return allocation;
}

std::optional<AllocationId> Job::find(const Mapping& mapping) const {
  const auto found = by_mapping_.find(mapping);
  return found == by_mapping_.end() ? std::nullopt : std::optional(found->second);
}

void Job::add(const LocalAllocation& local, const Mapping& mapping, Changes& changes) {
  const auto same = local.memory == 0 ? by_memory_.end() : by_memory_.find(local.memory);
  const bool known = same != by_memory_.end();
  const AllocationId id = known ? same->second : AllocationId{++last_id_};
  if (known) changes.remapped.insert(id);
  if (local.memory != 0) by_memory_.emplace(local.memory, id);
  by_mapping_.emplace(mapping, id);
  Allocation& allocation = allocations_
                               .try_emplace(id, Allocation{.id = id,
                                                           .gpu = local.gpu,
                                                           .size_bytes = 0,
                                                           .mapped_by = {},
                                                           .host_node = local.host_node})
                               .first->second;
  allocation.mapped_by.push_back(mapping);
}

void Job::drop(const Mapping& mapping, Changes& changes) {
  const AllocationId id = by_mapping_.at(mapping);
  by_mapping_.erase(mapping);
  std::vector<Mapping>& left = allocations_.at(id).mapped_by;
  std::erase(left, mapping);
  changes.remapped.insert(id);
  if (!left.empty()) return;
  changes.remapped.erase(id);
  changes.removed.insert(id);
  allocations_.erase(id);
  std::erase_if(by_memory_, [id](const auto& known) { return known.second == id; });
}

Job::Changes Job::follow(std::span<const Listed> members) {
  Changes changes;
  std::set<Mapping> present;
  // Memory of one member may have become shared since. Its number must be known before the other
  // members' new mappings of it are added.
  for (const auto& [member, now] : members) {
    for (const LocalAllocation& local : now) {
      const Mapping mapping{member, local.local_id};
      present.insert(mapping);
      const auto known = find(mapping);
      if (!known || local.memory == 0) continue;
      const AllocationId same = by_memory_.emplace(local.memory, *known).first->second;
      if (same != *known) drop(mapping, changes);  // another mapping was seen before it was shared
    }
  }
  for (const auto& [member, now] : members) {
    for (const LocalAllocation& local : now) {
      const Mapping mapping{member, local.local_id};
      if (!by_mapping_.contains(mapping)) add(local, mapping, changes);
      Allocation& allocation = allocations_.at(by_mapping_.at(mapping));
      if (allocation.size_bytes == 0) allocation.size_bytes = local.size_bytes;
    }
  }
  for (const auto& [member, now] : members) {
    std::vector<Mapping> gone;
    for (auto at = by_mapping_.lower_bound({member, 0});
         at != by_mapping_.end() && at->first.member == member; ++at) {
      if (!present.contains(at->first)) gone.push_back(at->first);
    }
    for (const Mapping& mapping : gone) drop(mapping, changes);
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

// NOLINTNEXTLINE(performance-unnecessary-value-param): the result takes the descriptors over
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

}  // namespace gcr::gpu

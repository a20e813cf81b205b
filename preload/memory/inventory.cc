#include "preload/memory/inventory.h"

#include <string.h>
#include <unistd.h>

#include <initializer_list>
#include <iterator>
#include <utility>

#include "preload/memory/bounds.h"

namespace gcr::preload {
namespace {

// Marks this library's handles: drivers' handles are pointers or small numbers, these are neither.
constexpr Handle kHandleMark = 0x6763'7200'0000'0000;
constexpr Handle kHandleMask = 0xffff'ff00'0000'0000;

}  // namespace

void close_descriptors(Physical& physical) {
  for (int* fd : {&physical.retained_fd, &physical.offered_fd}) {
    const int closing = std::exchange(*fd, -1);  // cleared first: a closed number may be reused
    if (closing >= 0) ::close(closing);
  }
}

Physical& Inventory::add_physical(Handle handle, std::size_t size_bytes, int device,
                                  Origin origin) {
  Physical& physical = physicals_[next_id_];
  physical.id = next_id_++;
  physical.handle = handle;
  physical.size_bytes = size_bytes;
  physical.device = device;
  physical.origin = origin;
  ++generation_;
  ++tracked_count_;
  tracked_bytes_ += size_bytes;
  return physical;
}

void Inventory::set_size(Physical& physical, std::size_t size_bytes) {
  ++generation_;
  tracked_bytes_ += size_bytes - physical.size_bytes;
  physical.size_bytes = size_bytes;
}

void Inventory::remove_physical(Physical& physical) {
  ++generation_;
  --tracked_count_;
  tracked_bytes_ -= physical.size_bytes;
  physicals_.erase(physical.id);
}

Physical* Inventory::find_physical(std::uint64_t id) {
  const auto found = physicals_.find(id);
  return found == physicals_.end() ? nullptr : &found->second;
}

Handle Inventory::to_handle(const Physical& physical) { return kHandleMark | physical.id; }

bool Inventory::is_our_handle(Handle handle) { return (handle & kHandleMask) == kHandleMark; }

Physical* Inventory::from_handle(Handle handle) {
  if (!is_our_handle(handle)) return nullptr;
  Physical* physical = find_physical(handle & ~kHandleMask);
  return physical != nullptr && physical->references > 0 ? physical : nullptr;
}

Mapping& Inventory::add_mapping(Address address, std::size_t size_bytes, std::size_t offset_bytes,
                                Physical& physical) {
  Mapping& mapping = mappings_[address];
  mapping.address = address;
  mapping.size_bytes = size_bytes;
  mapping.offset_bytes = offset_bytes;
  mapping.physical = &physical;
  ++physical.mappings;
  bounds::note_change();
  return mapping;
}

Mapping Inventory::remove_mapping(Address address) {
  auto node = mappings_.extract(address);
  --node.mapped().physical->mappings;
  bounds::note_change();
  return std::move(node.mapped());
}

Mapping* Inventory::find_mapping(Address address) {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return nullptr;
  Mapping& mapping = std::prev(after)->second;
  return address - mapping.address < mapping.size_bytes ? &mapping : nullptr;
}

void Inventory::gap_around(Address address, Address* begin, Address* end) const {
  const auto after = mappings_.upper_bound(address);
  *end = after == mappings_.end() ? ~Address{0} : after->first;
  if (after == mappings_.begin()) {
    *begin = 0;
  } else {
    const Mapping& before = std::prev(after)->second;
    *begin = before.address + before.size_bytes;
  }
}

Plain& Inventory::add_plain(Address address, std::size_t requested_bytes) {
  bounds::note_change();
  return add_pooled(address, requested_bytes);
}

Plain& Inventory::add_pooled(Address address, std::size_t requested_bytes) {
  Plain& plain = plains_[address];
  plain.address = address;
  plain.requested_bytes = requested_bytes;
  plain.buffer_id = next_buffer_id_++;
  return plain;
}

void Inventory::remove_plain(Address address) {
  bounds::note_change();
  remove_ipc_records(address, address + 1);
  plains_.erase(address);
}

void Inventory::remove_pooled(Address address) { plains_.erase(address); }

void Inventory::remove_ipc_records(Address first, Address end) {
  if (ipc_records_.empty()) return;
  const auto begin = ipc_records_.lower_bound(first);
  const auto behind = ipc_records_.lower_bound(end);
  // Other processes may still read the records at their addresses, so mark them as invalid.
  for (auto next = begin; next != behind; ++next) {
    ::explicit_bzero(&next->second, sizeof(next->second));
  }
  ipc_records_.erase(begin, behind);
}

Plain* Inventory::find_plain(Address address) {
  auto after = plains_.upper_bound(address);
  if (after == plains_.begin()) return nullptr;
  Plain& plain = std::prev(after)->second;
  return address - plain.address < plain.requested_bytes ? &plain : nullptr;
}

bool Inventory::has_plains(const Mapping& mapping) const {
  const auto first = plains_.lower_bound(mapping.address);
  return first != plains_.end() && first->first - mapping.address < mapping.size_bytes;
}

void Inventory::remove_plains(const Mapping& mapping) {
  bounds::note_change();
  remove_ipc_records(mapping.address, mapping.address + mapping.size_bytes);
  plains_.erase(plains_.lower_bound(mapping.address),
                plains_.lower_bound(mapping.address + mapping.size_bytes));
}

void Inventory::add_untracked(Address address, std::size_t size_bytes, bool managed) {
  remove_untracked(address);
  untracked_.emplace(address, Untracked{size_bytes, managed});
  untracked_bytes_ += size_bytes;
  if (managed) ++managed_count_;
}

void Inventory::remove_untracked(Address address) {
  const auto found = untracked_.find(address);
  if (found == untracked_.end()) return;
  untracked_bytes_ -= found->second.size_bytes;
  if (found->second.managed) --managed_count_;
  untracked_.erase(found);
}

}  // namespace gcr::preload

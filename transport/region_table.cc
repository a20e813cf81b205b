#include "transport/region_table.h"

#include <fmt/format.h>

namespace gcr::transport {

Status RegionTable::add(RegionId region, std::span<std::byte> bytes) {
  return add(region, Entry{.size_bytes = bytes.size(), .memory = bytes.data()});
}

Status RegionTable::add_windowed(RegionId region, std::uint64_t size_bytes) {
  return add(region, Entry{.size_bytes = size_bytes, .windowed = true});
}

Status RegionTable::add(RegionId region, Entry entry) {
  const std::lock_guard lock(mutex_);
  if (!entries_.try_emplace(region, entry).second) {
    return Error(Code::kInvalidArgument, fmt::format("region {} exists already", region));
  }
  return {};
}

Status RegionTable::remove(RegionId region) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(region);
  if (found == entries_.end() || found->second.removed) {
    return Error(Code::kNotFound, fmt::format("there is no region {}", region));
  }
  found->second.removed = true;
  unpinned_.wait(lock, [&] { return found->second.pins == 0; });
  entries_.erase(found);
  return {};
}

Result<RegionTable::Pin> RegionTable::pin(RegionId region, std::uint64_t offset,
                                          std::uint64_t length_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(region);
  if (found == entries_.end() || found->second.removed) {
    return Error(Code::kNotFound,
                 fmt::format("write of {} bytes into region {}, which does not exist", length_bytes,
                             region));
  }
  Entry& entry = found->second;
  if (offset > entry.size_bytes || length_bytes > entry.size_bytes - offset) {
    return Error(Code::kInvalidArgument,
                 fmt::format("write of {} bytes at offset {} does not fit region {} of {} bytes",
                             length_bytes, offset, region, entry.size_bytes));
  }
  ++entry.pins;
  if (entry.windowed) return Pin(this, region, {}, true);
  return Pin(this, region, {entry.memory + offset, length_bytes}, false);
}

void RegionTable::unpin(RegionId region) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(region);
  if (--entry.pins == 0 && entry.removed) unpinned_.notify_all();
}

}  // namespace gcr::transport

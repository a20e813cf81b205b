#include "preload/memory/pool_ranges.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gcr::preload {

void PoolRanges::add_stretch(Address address, std::size_t size_bytes) {
  stretches_.emplace(address, size_bytes);
  insert(address, {size_bytes, address, {}});
}

Address PoolRanges::remove_free_stretch(std::size_t most_bytes) {
  for (auto stretch = stretches_.begin(); stretch != stretches_.end(); ++stretch) {
    const auto [address, size_bytes] = *stretch;
    const auto range = ranges_.find(address);
    if (size_bytes > most_bytes || range == ranges_.end() ||
        range->second.size_bytes != size_bytes ||
        range->second.freed_at.stream != StreamPoint::kAllStreams) {
      continue;
    }
    erase(range);
    stretches_.erase(stretch);
    return address;
  }
  return 0;
}

Address PoolRanges::allocate(std::uint64_t stream, std::size_t size_bytes) {
  for (const std::uint64_t owner : {stream, StreamPoint::kAllStreams}) {
    const auto found = by_size_.lower_bound({owner, size_bytes, 0});
    if (found == by_size_.end() || std::get<0>(*found) != owner) continue;
    return cut(ranges_.find(std::get<2>(*found)), size_bytes);
  }
  return 0;
}

Address PoolRanges::allocate_joined(std::uint64_t stream, std::size_t size_bytes) {
  const auto usable = [&](const Range& range) {
    return range.freed_at.stream == stream || range.freed_at.stream == StreamPoint::kAllStreams;
  };
  std::size_t found_bytes = 0;
  auto first = ranges_.begin();
  for (auto last = ranges_.begin(); last != ranges_.end(); ++last) {
    if (!usable(last->second)) {
      found_bytes = 0;
      continue;
    }
    if (found_bytes == 0 || first->first + found_bytes != last->first ||
        first->second.stretch != last->second.stretch) {
      first = last;
      found_bytes = 0;
    }
    found_bytes += last->second.size_bytes;
    if (found_bytes < size_bytes) continue;
    Range joined{found_bytes, first->second.stretch, {stream, 0}};
    const Address address = first->first;
    for (const auto end = std::next(last); first != end;) {
      joined.freed_at.ticket = std::max(joined.freed_at.ticket, first->second.freed_at.ticket);
      erase(first++);
    }
    insert(address, joined);
    return cut(ranges_.find(address), size_bytes);
  }
  return 0;
}

void PoolRanges::release(Address address, std::size_t size_bytes, StreamPoint freed_at) {
  const Address stretch = std::prev(stretches_.upper_bound(address))->first;
  Range range{size_bytes, stretch, freed_at};
  const auto join = [&](Ranges::iterator neighbour) {
    range.size_bytes += neighbour->second.size_bytes;
    range.freed_at.ticket = std::max(range.freed_at.ticket, neighbour->second.freed_at.ticket);
    address = std::min(address, neighbour->first);
    erase(neighbour);
  };
  const auto joins = [&](const Ranges::value_type& neighbour) {
    return neighbour.second.stretch == stretch &&
           neighbour.second.freed_at.stream == freed_at.stream;
  };
  const auto after = ranges_.lower_bound(address);
  const auto before = after == ranges_.begin() ? ranges_.end() : std::prev(after);
  if (after != ranges_.end() && after->first == address + size_bytes && joins(*after)) join(after);
  if (before != ranges_.end() && before->first + before->second.size_bytes == address &&
      joins(*before)) {
    join(before);
  }
  insert(address, range);
}

void PoolRanges::pass(StreamPoint point) {
  // A range that is released for all streams leaves this stream's part of the index.
  auto next = by_size_.lower_bound({point.stream, 0, 0});
  while (next != by_size_.end() && std::get<0>(*next) == point.stream) {
    const Address address = std::get<2>(*next++);
    const auto range = ranges_.find(address);
    if (range->second.freed_at.ticket > point.ticket) continue;
    const std::size_t size_bytes = range->second.size_bytes;
    erase(range);
    release(address, size_bytes, {});
  }
}

/// Cuts the lower part off a free range.
Address PoolRanges::cut(Ranges::iterator range, std::size_t size_bytes) {
  const Address address = range->first;
  Range rest = range->second;
  erase(range);
  rest.size_bytes -= size_bytes;
  if (rest.size_bytes > 0) insert(address + size_bytes, rest);
  return address;
}

void PoolRanges::insert(Address address, const Range& range) {
  by_size_.insert(key_of(*ranges_.emplace(address, range).first));
}

void PoolRanges::erase(Ranges::iterator range) {
  by_size_.erase(key_of(*range));
  ranges_.erase(range);
}

}  // namespace gcr::preload

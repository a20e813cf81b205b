// The free ranges of a memory pool, and the order of streams in which they were freed (decision 1).
// Plain bookkeeping, guarded by Runtime::mutex: nothing here calls the driver. Nodes are
// recycled, so that only growth needs the heap.
//
// A pool is made of stretches of backed memory. A free range lies in one stretch and belongs to the
// stream that freed it, which may use it again at once, or to everybody, once that stream has
// passed the point of the free. Neighbours that belong to the same are one range. Best fit, in
// units of 512 bytes, as the driver aligns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>
#include <tuple>

#include "preload/memory/types.h"

namespace gcr::preload {

/// A point in the order of a stream: the driver's number of the stream, and of frees, the last one
/// before that point. Tickets count all frees in all pools.
struct StreamPoint {
  static constexpr std::uint64_t kEverybody = 0;

  std::uint64_t stream = kEverybody;
  std::uint64_t ticket = 0;
};

class PoolRanges {
 public:
  static constexpr std::size_t kUnitBytes = 512;

  /// What an allocation takes of the pool.
  static std::size_t whole_units(std::size_t size_bytes) {
    return (size_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  }

  PoolRanges() = default;
  PoolRanges(const PoolRanges&) = delete;
  PoolRanges& operator=(const PoolRanges&) = delete;

  /// Adds a stretch: free, everybody's.
  void add_stretch(Address address, std::size_t size_bytes);
  /// Removes a stretch of at most `most_bytes` that is free and everybody's, and returns its
  /// address; 0 if there is none.
  Address remove_free_stretch(std::size_t most_bytes);

  /// A place for work of `stream`: in what it freed itself, or in what is everybody's; 0 if there
  /// is none. `size_bytes` is a multiple of the unit here and below.
  Address take(std::uint64_t stream, std::size_t size_bytes);
  /// The same in neighbours of both kinds, which become one range of the stream. Looks at all
  /// ranges.
  Address take_joined(std::uint64_t stream, std::size_t size_bytes);
  /// A place in the smallest sufficient range of any other stream for which `may_take(point)` says
  /// yes; 0 if there is none. Looks at all ranges.
  template <class MayTake>
  Address take_of_others(std::size_t size_bytes, const MayTake& may_take) {
    auto best = ranges_.end();
    for (auto next = ranges_.begin(); next != ranges_.end(); ++next) {
      const Range& range = next->second;
      if (range.size_bytes < size_bytes ||
          (best != ranges_.end() && range.size_bytes >= best->second.size_bytes) ||
          !may_take(range.freed_at)) {
        continue;
      }
      best = next;
    }
    return best == ranges_.end() ? 0 : cut(best, size_bytes);
  }

  /// Undoes a take. `freed_at` may be everybody's.
  void give_back(Address address, std::size_t size_bytes, StreamPoint freed_at);
  /// The GPU has passed that point: what the stream freed before is everybody's.
  void pass(StreamPoint point);

  bool has_stretches() const { return !stretches_.empty(); }

 private:
  struct Range {
    std::size_t size_bytes;
    Address stretch;
    StreamPoint freed_at;
  };
  using Ranges = std::pmr::map<Address, Range>;
  using Key = std::tuple<std::uint64_t, std::size_t, Address>;  ///< stream, size, address

  static Key key_of(const Ranges::value_type& range) {
    return {range.second.freed_at.stream, range.second.size_bytes, range.first};
  }
  Address cut(Ranges::iterator range, std::size_t size_bytes);
  void insert(Address address, const Range& range);
  void erase(Ranges::iterator range);

  std::pmr::unsynchronized_pool_resource nodes_;
  Ranges ranges_{&nodes_};
  std::pmr::set<Key> by_size_{&nodes_};
  std::map<Address, std::size_t> stretches_;
};

}  // namespace gcr::preload

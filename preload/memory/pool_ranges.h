// The free ranges of a memory pool, and the streams in whose order they were freed (decision 1).
// Plain bookkeeping, guarded by Runtime::mutex: nothing here calls the driver. Nodes are reused, so
// only growth needs the heap.
//
// A pool consists of stretches of backed memory. A free range lies in one stretch and has an owner:
// first the stream that freed it, which may reuse it at once; when the GPU has passed the free, all
// streams. Adjacent ranges of the same owner are merged. Allocation is best fit, in units of 512
// bytes, the driver's alignment; an index by owner and size finds the range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>
#include <tuple>

#include "preload/memory/types.h"

namespace gcr::preload {

/// A point in the order of a stream: the stream's number, and the ticket of the last free before
/// the point. Tickets count all frees in all pools.
struct StreamPoint {
  static constexpr std::uint64_t kAllStreams = 0;

  std::uint64_t stream = kAllStreams;
  std::uint64_t ticket = 0;
};

class PoolRanges {
 public:
  static constexpr std::size_t kUnitBytes = 512;

  /// The bytes of the pool that an allocation occupies.
  static std::size_t whole_units(std::size_t size_bytes) {
    return (size_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  }

  PoolRanges() = default;
  PoolRanges(const PoolRanges&) = delete;
  PoolRanges& operator=(const PoolRanges&) = delete;

  /// Adds a stretch, free for all streams.
  void add_stretch(Address address, std::size_t size_bytes);
  /// Removes a stretch of at most `most_bytes` that is free for all streams, and returns its
  /// address; 0 if there is none.
  Address remove_free_stretch(std::size_t most_bytes);

  /// Allocates for work of `stream`, from its own free ranges or those for all streams; 0 if none
  /// fits. Here and below, `size_bytes` is a multiple of the unit.
  Address allocate(std::uint64_t stream, std::size_t size_bytes);
  /// Allocates from adjacent ranges of the stream and of all streams, merged to a range of the
  /// stream; 0 if none fits. Visits all ranges.
  Address allocate_joined(std::uint64_t stream, std::size_t size_bytes);
  /// Allocates from the smallest sufficient range of another stream for which `may_use(point)` is
  /// true; 0 if there is none. Visits all ranges.
  template <class MayUse>
  Address allocate_from_others(std::size_t size_bytes, const MayUse& may_use) {
    auto best = ranges_.end();
    for (auto next = ranges_.begin(); next != ranges_.end(); ++next) {
      const Range& range = next->second;
      if (range.size_bytes < size_bytes ||
          (best != ranges_.end() && range.size_bytes >= best->second.size_bytes) ||
          !may_use(range.freed_at)) {
        continue;
      }
      best = next;
    }
    return best == ranges_.end() ? 0 : cut(best, size_bytes);
  }

  /// Frees an allocation at a stream's point; with stream kAllStreams, all streams may reuse it at
  /// once.
  void release(Address address, std::size_t size_bytes, StreamPoint freed_at);
  /// Releases ranges that a stream freed up to `point`, which the GPU has passed, for all streams.
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

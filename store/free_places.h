// The free places of a pack.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace gcr::store {

/// Free ranges in whole units, merged with their neighbours and indexed by offset and by size. Used
/// by one thread at a time.
class FreePlaces {
 public:
  /// Everything from `begin` on is free.
  explicit FreePlaces(std::uint64_t begin) : end_(begin) {}

  /// Allocates `bytes` from the smallest sufficient free range, or else at the end; returns the
  /// offset.
  std::uint64_t allocate(std::uint64_t bytes) {
    const auto fitting = by_size_.lower_bound({bytes, 0});
    if (fitting == by_size_.end()) return std::exchange(end_, end_ + bytes);
    const auto [size, offset] = *fitting;
    forget(by_offset_.find(offset));
    if (size > bytes) note(offset + bytes, size - bytes);
    return offset;
  }

  void release(std::uint64_t offset, std::uint64_t bytes) {
    const auto next = by_offset_.find(offset + bytes);
    if (next != by_offset_.end()) {
      bytes += next->second;
      forget(next);
    }
    auto before = by_offset_.lower_bound(offset);
    if (before != by_offset_.begin() && (--before)->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      forget(before);
    }
    if (offset + bytes == end_) {
      end_ = offset;
    } else {
      note(offset, bytes);
    }
  }

  std::uint64_t end() const { return end_; }  ///< nothing is used from here on
  const std::map<std::uint64_t, std::uint64_t>& holes() const { return by_offset_; }

 private:
  using ByOffset = std::map<std::uint64_t, std::uint64_t>;

  void note(std::uint64_t offset, std::uint64_t bytes) {
    by_offset_[offset] = bytes;
    by_size_.insert({bytes, offset});
  }
  void forget(ByOffset::iterator place) {
    by_size_.erase({place->second, place->first});
    by_offset_.erase(place);
  }

  ByOffset by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t end_;
};

}  // namespace gcr::store

// Arenas: stretches of backed memory from which small allocations are cut and, in a process with
// many buffers, medium ones (decision 1). Plain bookkeeping, guarded by Runtime::mutex: nothing
// here calls the driver, and only a new arena needs the heap.
//
// An arena has a bit for each unit of 512 bytes or 2 MiB, the driver's alignments; a set bit is a
// used unit, so free neighbours need no merging. An allocation gets the first fit by address.
//
// First fit needs at most about log2(largest / smallest) = 12 times the bytes that were live at
// once, for any order of allocations and frees; 3 times for medium ones (Robson, "Worst case
// fragmentation of first fit and best fit storage allocation strategies", 1977). Without frees, the
// unused memory is the rest of the last arena and the ends of the others, whose sizes are chosen so
// that allocations fill them:
//
// - small: the last arena has a fifth of all, at most 40 MiB. Unused are up to 64 MiB or 3 %, the
//   larger of the two; 72 MiB or 4 % if all allocations are larger than 1 MiB and of random sizes.
// - medium: the last arena has a 64th of the process's VRAM, at least 16 and at most 128 MiB. Up to
//   64 MiB or 3 % of that VRAM are unused; 5 % for two sizes that do not fill an arena together;
//   7 % if all medium allocations are larger than 8 MiB and of random sizes.
//
// When memory runs out, unused memory in arenas is reclaimed (room.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "preload/memory/types.h"

namespace gcr::preload {

/// The two kinds of arenas.
struct ArenaKind {
  std::size_t unit_bytes;      ///< sizes and addresses are multiples of it
  std::size_t most_units;      ///< of the largest allocation
  std::size_t smallest_bytes;  ///< size of an arena when memory is short
  std::size_t largest_bytes;   ///< of an arena
  std::size_t growth;          ///< a new arena has 1/growth of the existing memory
  bool keeps_one;              ///< the smallest empty arena is kept for later allocations
};

/// Allocations below this size are small. Sizes of arenas are multiples of it.
inline constexpr std::size_t kSmallestMediumBytes = std::size_t{2} << 20;
inline constexpr ArenaKind kSmallArenas{.unit_bytes = 512,
                                        .most_units = kSmallestMediumBytes / 512,
                                        .smallest_bytes = kSmallestMediumBytes,
                                        .largest_bytes = std::size_t{40} << 20,
                                        .growth = 4,
                                        .keeps_one = true};
/// Medium allocations have up to 16 MiB, in units of 2 MiB, the driver's smallest mapping. A GPU
/// cannot hold so many larger allocations that their number would cost time.
inline constexpr ArenaKind kMediumArenas{.unit_bytes = kSmallestMediumBytes,
                                         .most_units = 8,
                                         .smallest_bytes = std::size_t{16} << 20,
                                         .largest_bytes = std::size_t{128} << 20,
                                         .growth = 64,
                                         .keeps_one = false};
inline constexpr std::size_t kLargestMediumBytes =
    kMediumArenas.unit_bytes * kMediumArenas.most_units;

/// The kind for an allocation of at most kLargestMediumBytes.
inline const ArenaKind& kind_of(std::size_t size_bytes) {
  return size_bytes < kSmallestMediumBytes ? kSmallArenas : kMediumArenas;
}

/// A part of an arena. `arena` is the arena's number, because a later arena may have the same
/// address.
struct ArenaRange {
  std::uint64_t arena = 0;
  Address address = 0;
  std::size_t size_bytes = 0;
};

class Arena {
 public:
  /// Creates a free arena of `size_bytes`, a multiple of 2 MiB. `number` must never be reused.
  Arena(const ArenaKind& kind, std::uint64_t number, Context* context, Address address,
        std::size_t size_bytes);

  const ArenaKind& kind() const { return *kind_; }

  std::uint64_t number() const { return number_; }
  Context* context() const { return context_; }
  Address address() const { return address_; }
  std::size_t size_bytes() const { return units_ * kind_->unit_bytes; }
  bool contains(Address address) const { return address - address_ < size_bytes(); }
  bool is_empty() const { return used_units_ == 0; }
  std::size_t unused_bytes() const { return (units_ - used_units_) * kind_->unit_bytes; }

  /// The bytes that an allocation of `size_bytes` occupies.
  std::size_t whole_units(std::size_t size_bytes) const {
    return units_of(size_bytes) * kind_->unit_bytes;
  }
  /// Allocates `size_bytes`, at least 1, at the lowest possible address; 0 if there is no room.
  Address allocate(std::size_t size_bytes);
  /// Frees an allocation of `size_bytes`.
  void release(Address address, std::size_t size_bytes);

 private:
  std::size_t units_of(std::size_t size_bytes) const;
  std::size_t next(std::size_t unit, bool used, std::size_t limit) const;
  std::size_t free_units_before(std::size_t unit) const;
  void mark(std::size_t unit, std::size_t count, bool used);

  const ArenaKind* kind_;
  std::uint64_t number_;
  Context* context_;
  Address address_;
  std::size_t units_;
  std::size_t used_units_ = 0;
  std::size_t first_free_ = 0;    ///< no unit below it is free
  std::size_t largest_free_ = 0;  ///< upper bound of consecutive free units, at most most_units
  std::unique_ptr<std::uint64_t[]> used_;  ///< a bit for each unit
};

/// All arenas, in the order of addresses.
class Arenas {
 public:
  /// Allocates a small or medium allocation in an arena of `context`; 0 if none has room.
  Address allocate(Context* context, std::size_t size_bytes);
  /// The best size of the next arena of `context`, if allocations of `size_bytes` fill it. The
  /// process has `tracked_bytes` of VRAM.
  std::size_t next_size_bytes(Context* context, std::size_t size_bytes,
                              std::uint64_t tracked_bytes) const;
  void add(Arena arena);

  /// The arena that contains `address`, or null.
  Arena* find(Address address);
  /// Frees a range; does nothing if its arena no longer exists. True if the arena is empty now.
  bool release(const ArenaRange& range);

  /// Removes an empty arena and returns its address; 0 if there is none. Keeps the smallest empty
  /// small arena of each context for later allocations, unless `all`.
  Address remove_empty(bool all);
  void remove_all_of(Context* context);
  void remove(Address address);

  const std::vector<Arena>& all() const { return arenas_; }

 private:
  std::vector<Arena> arenas_;
};

}  // namespace gcr::preload

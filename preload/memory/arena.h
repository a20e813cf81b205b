// Arenas: stretches of backed memory out of which small allocations are cut and, in a process with
// many buffers, medium ones (decision 1). Plain bookkeeping, guarded by Runtime::mutex:
// nothing here calls the driver, and only a new arena needs the heap.
//
// First fit by address, in units of 512 bytes or 2 MiB, as the driver aligns. Neighbours that are
// free are one: an arena has a bit for each unit.
//
// Whatever the order of allocations and frees, first fit needs at most about log2(largest /
// smallest) = 12 times the bytes that were live at once, or 3 times of medium ones (Robson, "Worst
// case fragmentation of first fit and best fit storage allocation strategies", 1977). Without
// frees, what is not used is the rest of the last arena, and the ends of the others, whose sizes
// are chosen to be filled. Of small arenas the last has a fifth of all and at most 40 MiB: 64 MiB
// or 3 % are unused, whatever is more; 72 MiB or 4 % where all allocations are larger than 1 MiB
// and of random sizes, of which none fits the end that another has left. Of medium arenas the last
// has a 64th of the process's VRAM, at least 16 and at most 128 MiB: 64 MiB or 3 % of that VRAM are
// unused; 5 % of two sizes that do not fill an arena together; 7 % where all medium allocations are
// larger than 8 MiB and of random sizes. Where memory runs out, that is not lost (room.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "preload/memory/types.h"

namespace gcr::preload {

/// The two kinds of arenas.
struct ArenaKind {
  std::size_t unit_bytes;      ///< of sizes and addresses
  std::size_t most_units;      ///< no allocation has more
  std::size_t smallest_bytes;  ///< of arenas, where memory is short
  std::size_t largest_bytes;   ///< of arenas
  std::size_t growth;          ///< a new arena has one part in so many of what there is
  bool keeps_one;              ///< of empty arenas the smallest stays for what comes next
};

/// Allocations below this size are small. Arenas are multiples of it.
inline constexpr std::size_t kSmallestMediumBytes = std::size_t{2} << 20;
inline constexpr ArenaKind kSmallArenas{.unit_bytes = 512,
                                        .most_units = kSmallestMediumBytes / 512,
                                        .smallest_bytes = kSmallestMediumBytes,
                                        .largest_bytes = std::size_t{40} << 20,
                                        .growth = 4,
                                        .keeps_one = true};
/// Up to 16 MiB, and of 2 MiB units, because the driver maps nothing smaller. Of larger allocations
/// a GPU does not hold so many that their number costs time.
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

/// A part of an arena. `arena` is its number: another arena may come to lie at the same address.
struct ArenaRange {
  std::uint64_t arena = 0;
  Address address = 0;
  std::size_t size_bytes = 0;
};

class Arena {
 public:
  /// A free stretch of `size_bytes`, a multiple of 2 MiB. `number` is never used twice.
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

  /// What an allocation of `size_bytes` takes.
  std::size_t whole_units(std::size_t size_bytes) const {
    return units_of(size_bytes) * kind_->unit_bytes;
  }
  /// The lowest address with room for `size_bytes` of its kind, from 1 byte on; 0 if there is none.
  Address take(std::size_t size_bytes);
  /// Undoes a take of the same size.
  void give_back(Address address, std::size_t size_bytes);

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
  std::size_t largest_free_ = 0;  ///< no more units than that are free in a row, or most_units are
  std::unique_ptr<std::uint64_t[]> used_;  ///< a bit for each unit
};

/// All arenas, in the order of addresses.
class Arenas {
 public:
  /// A place for a small or medium allocation in an arena of `context`, 0 if none has one.
  Address take(Context* context, std::size_t size_bytes);
  /// How large the next arena of `context` should be, which allocations of `size_bytes` will fill.
  /// The process has `tracked_bytes` of VRAM.
  std::size_t next_size_bytes(Context* context, std::size_t size_bytes,
                              std::uint64_t tracked_bytes) const;
  void add(Arena arena);

  /// The arena that contains `address`, or null.
  Arena* find(Address address);
  /// Makes a range free; nothing if its arena is gone. True if the arena is empty now.
  bool give_back(const ArenaRange& range);

  /// Removes an arena in which nothing is left, and returns its address; 0 if there is none. Of
  /// each context's small arenas, the smallest is kept for what comes next, unless `all`.
  Address remove_empty(bool all);
  void remove_all_of(Context* context);
  void remove(Address address);

  const std::vector<Arena>& all() const { return arenas_; }

 private:
  std::vector<Arena> arenas_;
};

}  // namespace gcr::preload

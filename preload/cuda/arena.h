// Arenas: stretches of backed memory out of which small allocations are cut (decision 1). Plain
// bookkeeping, guarded by ProcessState::mutex: nothing here calls the driver, and only a new arena
// needs the heap.
//
// First fit by address, in units of 512 bytes, as the driver aligns. Neighbours that are free are
// one: an arena has a bit for each unit.
//
// Whatever the order of allocations and frees, first fit needs at most about log2(largest /
// smallest) = 12 times the bytes that were live at once (Robson, "Worst case fragmentation of first
// fit and best fit storage allocation strategies", 1977). Without frees, what is not used is the
// rest of the last arena, which has a fifth of all and at most 48 MiB, and the ends of the others,
// whose sizes are chosen to be filled: 64 MiB or 3 %, whatever is more; 72 MiB or 5 % where all are
// larger than 1 MiB and of random sizes, of which none fits the end that another has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::preload {

/// Allocations below this size come out of arenas; the smallest arena has it.
inline constexpr std::size_t kSmallestArenaBytes = std::size_t{2} << 20;
inline constexpr std::size_t kLargestArenaBytes = std::size_t{48} << 20;

/// A part of an arena. `arena` is its number: another arena may come to lie at the same address.
struct ArenaRange {
  std::uint64_t arena = 0;
  CUdeviceptr address = 0;
  std::size_t size_bytes = 0;
};

class Arena {
 public:
  /// A free stretch of `size_bytes`, a multiple of 32 KiB. `number` is never used twice.
  Arena(std::uint64_t number, CUcontext context, CUdeviceptr address, std::size_t size_bytes);

  std::uint64_t number() const { return number_; }
  CUcontext context() const { return context_; }
  CUdeviceptr address() const { return address_; }
  std::size_t size_bytes() const;
  bool contains(CUdeviceptr address) const { return address - address_ < size_bytes(); }
  bool is_empty() const { return used_units_ == 0; }

  /// The lowest address with room for `size_bytes`, from 1 byte to below kSmallestArenaBytes; 0 if
  /// there is none.
  CUdeviceptr take(std::size_t size_bytes);
  /// Undoes a take of the same size.
  void give_back(CUdeviceptr address, std::size_t size_bytes);

 private:
  std::size_t next(std::size_t unit, bool used, std::size_t limit) const;
  std::size_t free_units_before(std::size_t unit) const;
  void mark(std::size_t unit, std::size_t count, bool used);

  std::uint64_t number_;
  CUcontext context_;
  CUdeviceptr address_;
  std::size_t units_;
  std::size_t used_units_ = 0;
  std::size_t first_free_ = 0;    ///< no unit below it is free
  std::size_t largest_free_ = 0;  ///< no more units than that are free in a row, or 2 MiB are
  std::unique_ptr<std::uint64_t[]> used_;  ///< a bit for each unit
};

/// All arenas, in the order of addresses.
class Arenas {
 public:
  /// A place for a small allocation in an arena of `context`, 0 if none has one.
  CUdeviceptr take(CUcontext context, std::size_t size_bytes);
  /// How large the next arena of `context` should be, which allocations of `size_bytes` will fill.
  std::size_t next_size_bytes(CUcontext context, std::size_t size_bytes) const;
  void add(Arena arena);

  /// The arena that contains `address`, or null.
  Arena* find(CUdeviceptr address);
  /// Makes a range free; nothing if its arena is gone. True if the arena is empty now.
  bool give_back(const ArenaRange& range);

  /// Removes an arena in which nothing is left, and returns its address; 0 if there is none. Of
  /// each context's, the smallest is kept for what comes next, unless `all`.
  CUdeviceptr remove_empty(bool all);
  void remove_all_of(CUcontext context);

 private:
  std::vector<Arena> arenas_;
};

}  // namespace gcr::preload

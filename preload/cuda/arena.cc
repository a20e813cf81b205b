#include "preload/cuda/arena.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace gcr::preload {
namespace {

constexpr std::size_t kUnitBytes = 512;
constexpr std::size_t kWordUnits = 64;
/// More than any allocation needs: whether more are free in a row does not matter.
constexpr std::size_t kMostUnits = kSmallestArenaBytes / kUnitBytes;
/// A new arena is this part of what its context has in arenas.
constexpr std::size_t kGrowth = 4;

std::size_t units_of(std::size_t size_bytes) { return (size_bytes + kUnitBytes - 1) / kUnitBytes; }

}  // namespace

Arena::Arena(std::uint64_t number, CUcontext context, CUdeviceptr address, std::size_t size_bytes)
    : number_(number),
      context_(context),
      address_(address),
      units_(size_bytes / kUnitBytes),
      largest_free_(units_),
      used_(std::make_unique<std::uint64_t[]>(units_ / kWordUnits)) {}

std::size_t Arena::size_bytes() const { return units_ * kUnitBytes; }

/// The first unit from `unit` on that is used, or free; `limit` if that is not below `limit`.
std::size_t Arena::next(std::size_t unit, bool used, std::size_t limit) const {
  while (unit < limit) {
    const std::uint64_t word = used ? used_[unit / kWordUnits] : ~used_[unit / kWordUnits];
    if (const std::uint64_t rest = word >> unit % kWordUnits) {
      return std::min(limit, unit + static_cast<std::size_t>(std::countr_zero(rest)));
    }
    unit = (unit / kWordUnits + 1) * kWordUnits;
  }
  return limit;
}

/// Free units in a row right below `unit`, at most kMostUnits and a word.
std::size_t Arena::free_units_before(std::size_t unit) const {
  const std::size_t end = unit;
  while (unit > 0 && end - unit < kMostUnits) {
    const std::size_t in_word = (unit - 1) % kWordUnits + 1;
    const std::uint64_t word = used_[(unit - 1) / kWordUnits] << (kWordUnits - in_word);
    if (word != 0) return end - unit + static_cast<std::size_t>(std::countl_zero(word));
    unit -= in_word;
  }
  return end - unit;
}

void Arena::mark(std::size_t unit, std::size_t count, bool used) {
  used_units_ += used ? count : -count;
  for (const std::size_t end = unit + count; unit < end;) {
    const std::size_t in_word = unit % kWordUnits;
    const std::size_t here = std::min(end - unit, kWordUnits - in_word);
    const std::uint64_t mask = ~std::uint64_t{0} >> (kWordUnits - here) << in_word;
    std::uint64_t& word = used_[unit / kWordUnits];
    word = used ? word | mask : word & ~mask;
    unit += here;
  }
}

CUdeviceptr Arena::take(std::size_t size_bytes) {
  const std::size_t wanted = units_of(size_bytes);
  if (wanted > largest_free_) return 0;
  first_free_ = next(first_free_, false, units_);
  std::size_t longest = 0;
  for (std::size_t unit = first_free_; unit < units_;) {
    const std::size_t end = next(unit, true, std::min(units_, unit + wanted));
    longest = std::max(longest, end - unit);
    if (longest == wanted) {
      mark(unit, wanted, true);
      return address_ + unit * kUnitBytes;
    }
    unit = next(end, false, units_);
  }
  largest_free_ = longest;
  return 0;
}

void Arena::give_back(CUdeviceptr address, std::size_t size_bytes) {
  const std::size_t unit = (address - address_) / kUnitBytes;
  const std::size_t count = units_of(size_bytes);
  mark(unit, count, false);
  first_free_ = std::min(first_free_, unit);
  const std::size_t end = next(unit + count, true, std::min(units_, unit + count + kMostUnits));
  largest_free_ = std::max(largest_free_, free_units_before(unit) + (end - unit));
}

CUdeviceptr Arenas::take(CUcontext context, std::size_t size_bytes) {
  for (Arena& arena : arenas_) {
    if (arena.context() != context) continue;
    if (const CUdeviceptr address = arena.take(size_bytes)) return address;
  }
  return 0;
}

std::size_t Arenas::next_size_bytes(CUcontext context, std::size_t size_bytes) const {
  std::size_t all_bytes = 0;
  for (const Arena& arena : arenas_) {
    if (arena.context() == context) all_bytes += arena.size_bytes();
  }
  const std::size_t share = all_bytes / kGrowth / kSmallestArenaBytes * kSmallestArenaBytes;
  const std::size_t most = std::clamp(share, kSmallestArenaBytes, kLargestArenaBytes);
  // The size of which least stays over, from half of the most on.
  const std::size_t each = units_of(size_bytes) * kUnitBytes;
  std::size_t best = most;
  for (std::size_t size = most; size >= most / 2 && size > 0; size -= kSmallestArenaBytes) {
    if (size % each * best < best % each * size) best = size;
  }
  return best;
}

void Arenas::add(Arena arena) {
  const auto after = std::ranges::upper_bound(arenas_, arena.address(), {}, &Arena::address);
  arenas_.insert(after, std::move(arena));
}

Arena* Arenas::find(CUdeviceptr address) {
  const auto after = std::ranges::upper_bound(arenas_, address, {}, &Arena::address);
  if (after == arenas_.begin()) return nullptr;
  Arena& arena = *std::prev(after);
  return arena.contains(address) ? &arena : nullptr;
}

bool Arenas::give_back(const ArenaRange& range) {
  Arena* arena = find(range.address);
  if (arena == nullptr || arena->number() != range.arena) return false;
  arena->give_back(range.address, range.size_bytes);
  return arena->is_empty();
}

CUdeviceptr Arenas::remove_empty(bool all) {
  for (auto arena = arenas_.begin(); arena != arenas_.end(); ++arena) {
    if (!arena->is_empty()) continue;
    const bool other_stays = std::ranges::any_of(arenas_, [&](const Arena& other) {
      return &other != &*arena && other.is_empty() && other.context() == arena->context() &&
             other.size_bytes() <= arena->size_bytes();
    });
    if (!all && !other_stays) continue;
    const CUdeviceptr address = arena->address();
    arenas_.erase(arena);
    return address;
  }
  return 0;
}

void Arenas::remove_all_of(CUcontext context) {
  std::erase_if(arenas_, [&](const Arena& arena) { return arena.context() == context; });
}

}  // namespace gcr::preload

// First fit over a bit map. Each arena keeps the first unit that may be free and an upper bound of
// its largest free run, so that full arenas are skipped without a search; a failed search makes the
// bound exact.
#include "preload/memory/arena.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "src/base/units.h"

namespace gcr::preload {
namespace {

constexpr std::size_t kWordUnits = 64;

}  // namespace

Arena::Arena(const ArenaKind& kind, std::uint64_t number, Context* context, Address address,
             std::size_t size_bytes)
    : kind_(&kind),
      number_(number),
      context_(context),
      address_(address),
      units_(size_bytes / kind.unit_bytes),
      largest_free_(units_),
      used_(std::make_unique<std::uint64_t[]>(round_up(units_, kWordUnits) / kWordUnits)) {}

std::size_t Arena::units_of(std::size_t size_bytes) const {
  return (size_bytes + kind_->unit_bytes - 1) / kind_->unit_bytes;
}

/// The first used (or free) unit from `unit` on; `limit` if there is none before it.
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

/// Number of consecutive free units right below `unit`; stops counting above most_units.
std::size_t Arena::free_units_before(std::size_t unit) const {
  const std::size_t end = unit;
  while (unit > 0 && end - unit < kind_->most_units) {
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

Address Arena::allocate(std::size_t size_bytes) {
  const std::size_t wanted = units_of(size_bytes);
  if (wanted > largest_free_) return 0;
  first_free_ = next(first_free_, false, units_);
  std::size_t longest = 0;
  for (std::size_t unit = first_free_; unit < units_;) {
    const std::size_t end = next(unit, true, std::min(units_, unit + wanted));
    longest = std::max(longest, end - unit);
    if (longest == wanted) {
      mark(unit, wanted, true);
      return address_ + unit * kind_->unit_bytes;
    }
    unit = next(end, false, units_);
  }
  largest_free_ = longest;
  return 0;
}

void Arena::release(Address address, std::size_t size_bytes) {
  const std::size_t unit = (address - address_) / kind_->unit_bytes;
  const std::size_t count = units_of(size_bytes);
  mark(unit, count, false);
  first_free_ = std::min(first_free_, unit);
  const std::size_t end =
      next(unit + count, true, std::min(units_, unit + count + kind_->most_units));
  largest_free_ = std::max(largest_free_, free_units_before(unit) + (end - unit));
}

Address Arenas::allocate(Context* context, std::size_t size_bytes) {
  for (Arena& arena : arenas_) {
    if (arena.context() != context || &arena.kind() != &kind_of(size_bytes)) continue;
    if (const Address address = arena.allocate(size_bytes)) return address;
  }
  return 0;
}

std::size_t Arenas::next_size_bytes(Context* context, std::size_t size_bytes,
                                    std::uint64_t tracked_bytes) const {
  const ArenaKind& kind = kind_of(size_bytes);
  std::size_t all_bytes = 0;
  for (const Arena& arena : arenas_) {
    if (arena.context() == context && &arena.kind() == &kind) all_bytes += arena.size_bytes();
  }
  if (&kind == &kMediumArenas) all_bytes = tracked_bytes;
  constexpr std::size_t kStep = kSmallestMediumBytes;
  const std::size_t share = all_bytes / kind.growth / kStep * kStep;
  const std::size_t most = std::clamp(share, kind.smallest_bytes, kind.largest_bytes);
  // Between half of `most` and `most`, the size with the smallest remainder.
  const std::size_t each = round_up(size_bytes, kind.unit_bytes);
  std::size_t best = most;
  for (std::size_t size = most; size >= most / 2 && size > 0; size -= kStep) {
    if (size % each * best < best % each * size) best = size;
  }
  return best;
}

void Arenas::add(Arena arena) {
  const auto after = std::ranges::upper_bound(arenas_, arena.address(), {}, &Arena::address);
  arenas_.insert(after, std::move(arena));
}

Arena* Arenas::find(Address address) {
  const auto after = std::ranges::upper_bound(arenas_, address, {}, &Arena::address);
  if (after == arenas_.begin()) return nullptr;
  Arena& arena = *std::prev(after);
  return arena.contains(address) ? &arena : nullptr;
}

bool Arenas::release(const ArenaRange& range) {
  Arena* arena = find(range.address);
  if (arena == nullptr || arena->number() != range.arena) return false;
  arena->release(range.address, range.size_bytes);
  return arena->is_empty();
}

Address Arenas::remove_empty(bool all) {
  for (auto arena = arenas_.begin(); arena != arenas_.end(); ++arena) {
    if (!arena->is_empty()) continue;
    const bool other_stays = std::ranges::any_of(arenas_, [&](const Arena& other) {
      return &other != &*arena && other.is_empty() && other.context() == arena->context() &&
             other.kind().keeps_one && other.size_bytes() <= arena->size_bytes();
    });
    if (!all && arena->kind().keeps_one && !other_stays) continue;
    const Address address = arena->address();
    arenas_.erase(arena);
    return address;
  }
  return 0;
}

void Arenas::remove(Address address) {
  std::erase_if(arenas_, [&](const Arena& arena) { return arena.address() == address; });
}

void Arenas::remove_all_of(Context* context) {
  std::erase_if(arenas_, [&](const Arena& arena) { return arena.context() == context; });
}

}  // namespace gcr::preload

#include "migrate-agent/criu/memory/prefilled_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "migrate-agent/linux/procfs/memory_of.h"
#include "src/base/address_ranges.h"
#include "src/base/random.h"
#include "src/base/units.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using launch::Hold;
using launch::HoldMessage;
using launch::kHugePageBytes;

constexpr std::uint64_t kWindowBytes = PrefilledArea::kWindowBytes;
/// An area reaches so far to both sides of what it is made for: mappings grow either way.
constexpr std::uint64_t kAreaBelow = 64 * kGiB;
constexpr std::uint64_t kAreaAbove = 448 * kGiB;
constexpr std::uint64_t kEndOfAddresses = std::uint64_t{1} << 47;
constexpr std::size_t kMostAreas = 48;
/// A mapping of which less is in place is copied.
constexpr std::uint64_t kWorthTaking = 16 * kMiB;

/// A kernel that never overcommits would not let CRIU fork.
bool may_overcommit() {
  int mode = 2;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> mode;
  return mode != 2;
}

}  // namespace

PrefilledMemory::PrefilledMemory(CriuMemory& criu, bool limited)
    : criu_(&criu),
      may_grow_(may_overcommit()),
      worth_pages_(limited ? kWindowPages : PrefilledArea::kNearlyAll) {}

PrefilledMemory::Area* PrefilledMemory::find_area(std::uint32_t memory, std::uint64_t address) {
  const auto found = std::ranges::find_if(areas_, [&](const auto& area) {
    return area->memory == memory && area->range.start <= address && address < area->range.end;
  });
  return found == areas_.end() ? nullptr : found->get();
}

/// Touched once, all of it is and stays one mapping for the kernel wherever it is opened.
Result<AddressRange> PrefilledMemory::reserve(std::uint64_t bytes) {
  GCR_ASSIGN(const HoldMessage answer, criu_->ask(Hold::kReserve, 0, bytes));
  GCR_TRY(criu_->write(answer.address, std::array<std::byte, 1>{}));
  return AddressRange{answer.address, answer.address + bytes};
}

/// nullptr if there is no room for one.
PrefilledMemory::Area* PrefilledMemory::make_area(std::uint32_t memory, std::uint64_t address) {
  if (!may_grow_ || areas_.size() == kMostAreas) return nullptr;
  const std::uint64_t at = address / kHugePageBytes * kHugePageBytes;
  AddressRange range{at - std::min(at, kAreaBelow), std::min(at + kAreaAbove, kEndOfAddresses)};
  for (const auto& other : areas_) {
    if (other->memory != memory) continue;
    if (other->range.end <= at) range.start = std::max(range.start, other->range.end);
    if (other->range.start > at) range.end = std::min(range.end, other->range.start);
  }
  const auto reserved = reserve(range.bytes() + kHugePageBytes);
  if (!reserved) {
    may_grow_ = false;
    return nullptr;
  }
  const std::uint64_t base = round_up(reserved->start, kHugePageBytes);
  areas_.push_back(std::make_unique<Area>(Area{{range, *reserved, base}, memory}));
  return areas_.back().get();
}

Result<bool> PrefilledMemory::place(std::uint32_t memory, std::uint64_t address, const Pages& pages,
                                    std::span<const std::byte> bytes) {
  Area* area = nullptr;
  {
    const std::lock_guard lock(mutex_);
    area = find_area(memory, address);
    if (area == nullptr || !area->windows.contains(address)) {
      if (!may_grow_ || pages.count() < worth_pages_) return false;
      if (area == nullptr) area = make_area(memory, address);
      if (area == nullptr) return false;
      if (!criu_->take_room(kWindowBytes)) return false;
      if (!area->make_huge(*criu_, address)) {
        if (++failures_ == kMostFailures) may_grow_ = false;
        return false;
      }
    }
    area->windows[address] |= pages;
  }
  GCR_TRY(area->write_pages(*criu_, address, pages, bytes));
  return true;
}

Status PrefilledMemory::move_to(CriuMemory& criu) {
  const CriuMemory& old = *std::exchange(criu_, &criu);
  for (const auto& area : areas_) {
    const PrefilledArea before = *area;
    GCR_ASSIGN(area->reserved, reserve(area->range.bytes() + kHugePageBytes));
    area->base = round_up(area->reserved.start, kHugePageBytes);
    GCR_TRY(area->copy_windows(criu, before, old));
  }
  return {};
}

Status PrefilledMemory::remove(const Area& area, const std::vector<AddressRange>& stale) {
  return area.clear(*criu_, stale, [&](const AddressRange& range) -> Status {
    GCR_TRY(criu_->ask(Hold::kDrop, area.in_criu(range.start), range.bytes()));
    return {};
  });
}

/// Puts a token where the kernel does not write, if anything is in place there.
Status PrefilledMemory::mark(const Area& area, pid_t process, const AddressRange& range) {
  const std::vector<AddressRange> valid = intersection(valid_[process], {range});
  if (valid.empty()) return {};
  const std::vector<AddressRange> untouched = difference(valid, kept_[process]);
  const auto place = std::ranges::find_if(
      untouched, [](const AddressRange& one) { return one.bytes() >= sizeof(Token); });
  if (place == untouched.end()) return {};
  Mapping& marked =
      mappings_.emplace_back(Mapping{process, range, bytes_of(valid), place->start,
                                     area.in_criu(place->start), random_bytes<sizeof(Token)>()});
  GCR_TRY(criu_->read(marked.token_in_criu, marked.covered));
  return criu_->write(marked.token_in_criu, marked.token);
}

/// Offers all or none of the mappings that touch: the kernel merges only what comes from one.
Status PrefilledMemory::offer(const Area& area, pid_t process,
                              const images::PrivateMappings& mappings) {
  const auto may_be_taken = [&](const images::PrivateMapping& one) {
    return one.plain && one.range.start >= area.range.start && one.range.end <= area.range.end;
  };
  const std::span<const images::PrivateMapping> all = mappings.mappings;
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    end = first + 1;
    if (!may_be_taken(all[first])) continue;
    while (end < all.size() && may_be_taken(all[end]) &&
           all[end].range.start == all[end - 1].range.end) {
      ++end;
    }
    const AddressRange together{all[first].range.start, all[end - 1].range.end};
    if (bytes_of(intersection(valid_[process], {together})) < kWorthTaking) continue;
    GCR_TRY(criu_->ask(Hold::kOpen, area.in_criu(together.start), together.bytes()));
    for (const images::PrivateMapping& one : all.subspan(first, end - first)) {
      GCR_TRY(mark(area, process, one.range));
      takes_.push_back({.what = Hold::kTake,
                        .pid = process,
                        .address = area.in_criu(one.range.start),
                        .bytes = one.range.bytes(),
                        .region_bytes = mappings.region_bytes,
                        .region_offset = one.region_offset,
                        .region_base = (one.range.start - one.region_offset) % kHugePageBytes});
    }
  }
  return {};
}

Status PrefilledMemory::hand_over(const fs::path& directory,
                                  const std::map<std::uint32_t, pid_t>& owners) {
  if (areas_.empty()) return {};
  GCR_ASSIGN(kept_, images::rseq_areas(directory));
  owners_ = owners;
  for (const auto& area : areas_) {
    const auto owner = owners.find(area->memory);
    if (owner == owners.end())
      return Error(Code::kDataLoss, "the images name no process for memory that arrived");
    const pid_t process = owner->second;
    if (!kept_.contains(process)) continue;  // it has ended
    GCR_ASSIGN(const auto map, images::read_ranges(directory / images::memory_map(process)));
    const std::vector<AddressRange> in_place = area->in_place();
    const std::vector<AddressRange> valid = intersection(in_place, map);
    GCR_TRY(remove(*area, difference(in_place, valid)));
    GCR_TRY(remove(*area, area->empty_blocks()));
    // Fresh memory has zeros there, besides what the kernel writes.
    for (const AddressRange& range : intersection(valid, kept_[process])) {
      GCR_TRY(criu_->write(area->in_criu(range.start), std::vector<std::byte>(range.bytes())));
    }
    std::vector<AddressRange>& all = valid_[process];
    all.insert(all.end(), valid.begin(), valid.end());
    std::ranges::sort(all, {}, &AddressRange::start);
  }
  for (const auto& area : areas_) {
    const pid_t process = owners_.at(area->memory);
    if (valid_[process].empty()) continue;
    const auto mappings = images::private_mappings(directory, process);
    if (mappings) GCR_TRY(offer(*area, process, *mappings));
  }
  // A region can suit one mapping best: the largest.
  std::map<pid_t, HoldMessage> largest;
  for (const HoldMessage& take : takes_) {
    HoldMessage& best = largest[take.pid];
    if (take.bytes > best.bytes) best = take;
  }
  for (const auto& [process, best] : largest) GCR_TRY(images::map_beforehand(directory, process));
  for (HoldMessage& take : takes_) {
    take.region_base = largest[take.pid].region_base;
    GCR_TRY(criu_->ask(take));
  }
  return {};
}

Result<Elsewhere> PrefilledMemory::find_taken(const std::map<pid_t, pid_t>& processes) {
  std::map<pid_t, std::vector<AddressRange>> taken;
  for (Mapping& mapping : mappings_) {
    const auto process = processes.find(mapping.process);
    Token found{};
    if (process == processes.end() ||
        !procfs::read_memory(process->second, mapping.token_at, found) || found != mapping.token) {
      GCR_TRY(criu_->write(mapping.token_in_criu, mapping.covered));
      continue;
    }
    mapping.taken_by = process->second;
    taken[mapping.process].push_back(mapping.range);
    taken_bytes_ += mapping.valid_bytes;
  }
  for (auto& [process, ranges] : taken) std::ranges::sort(ranges, {}, &AddressRange::start);
  Elsewhere elsewhere;
  for (const auto& area : areas_) {
    const pid_t process = owners_.at(area->memory);
    std::vector<AddressRange> rest =
        difference(intersection(valid_[process], {area->range}), taken[process]);
    rest = difference(rest, kept_[process]);
    if (rest.empty()) continue;
    const auto found = processes.find(process);
    if (found == processes.end()) {
      return Error(Code::kDataLoss, fmt::format("CRIU restored no process {}", process));
    }
    elsewhere.sources.push_back(
        {found->second, criu_->path(), std::move(rest), area->base - area->range.start});
  }
  elsewhere.in_place = valid_;
  return elsewhere;
}

Status PrefilledMemory::let_go() {
  for (const auto& area : areas_) {
    GCR_TRY(criu_->ask(Hold::kRemove, area->reserved.start, area->reserved.bytes()));
  }
  for (const Mapping& mapping : mappings_) {
    if (mapping.taken_by == 0) continue;
    GCR_TRY(procfs::write_memory(mapping.taken_by, mapping.token_at, mapping.covered));
  }
  return {};
}

}  // namespace gcr::criu

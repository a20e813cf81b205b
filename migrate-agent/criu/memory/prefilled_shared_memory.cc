#include "migrate-agent/criu/memory/prefilled_shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/memory/memory_filling.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/pages/shared_memory.h"
#include "src/base/units.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using launch::Hold;
using launch::HoldMessage;
using launch::kHugePageBytes;
using process::kMostSharedBytes;

/// CRIU's addresses are enough for so many of kMostSharedBytes.
constexpr std::size_t kMostSharedAreas = 64;

/// The pages that each memory that came separately from the CRIU images had in the end.
Result<std::map<std::uint32_t, AddressRanges>> maps_in(const fs::path& directory) {
  std::map<std::uint32_t, AddressRanges> maps;
  for (const std::string& name : images::names(directory)) {
    if (!name.starts_with(images::kSharedMaps)) continue;
    GCR_ASSIGN(const std::uint32_t number, images::number_of_shared_map(name));
    GCR_ASSIGN(maps[number], images::read_ranges(directory / name));
  }
  return maps;
}

Status punch(const UniqueFd& file, const AddressRange& range) {
  if (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(range.start), static_cast<off_t>(range.bytes())) == 0) {
    return {};
  }
  return Error::from_errno(errno, "cannot give shared memory back");
}

}  // namespace

/// In whole huge pages, so that they can be mapped as they are.
Result<PrefilledArea> PrefilledSharedMemory::make_area(std::uint64_t bytes) {
  const std::uint64_t whole = round_up(std::max<std::uint64_t>(bytes, 1), kHugePageBytes);
  GCR_ASSIGN(const HoldMessage answer, criu_->ask(Hold::kMakeShared, 0, whole));
  return PrefilledArea{{0, whole}, {answer.address, answer.address + whole}, answer.address};
}

/// nullptr if there is no room for one.
PrefilledArea* PrefilledSharedMemory::area_of(std::uint32_t memory) {
  const auto known = areas_.find(memory);
  if (known != areas_.end()) return &known->second;
  if (!may_grow_ || areas_.size() == kMostSharedAreas) return nullptr;
  auto made = make_area(kMostSharedBytes);
  // A kernel that never overcommits has no room for what is not used.
  may_grow_ = static_cast<bool>(made);
  return made ? &areas_.emplace(memory, std::move(*made)).first->second : nullptr;
}

Result<bool> PrefilledSharedMemory::place(std::uint32_t memory, std::uint64_t window,
                                          const Pages& pages, std::span<const std::byte> bytes) {
  PrefilledArea* area = nullptr;
  {
    const std::lock_guard lock(mutex_);
    area = area_of(memory);
    if (area == nullptr || window + PrefilledArea::kWindowBytes > area->range.end) return false;
    const bool is_new = !area->windows.contains(window);
    if (is_new && !criu_->take_room(PrefilledArea::kWindowBytes)) return false;
    // Without huge pages it is in small ones: a fork copies nothing of memory that is shared.
    if (is_new && failures_ < kMostFailures && pages.count() >= PrefilledArea::kNearlyAll &&
        !area->make_huge(*criu_, window)) {
      ++failures_;
    }
    area->windows[window] |= pages;
  }
  GCR_TRY(area->write_pages(*criu_, window, pages, bytes));
  return true;
}

Status PrefilledSharedMemory::move_to(CriuMemory& criu) {
  const CriuMemory& old = *std::exchange(criu_, &criu);
  for (auto& [memory, area] : areas_) {
    const PrefilledArea before = area;
    GCR_ASSIGN(area, make_area(kMostSharedBytes));
    GCR_TRY(area.copy_windows(criu, before, old));
  }
  return {};
}

/// Writes what files have of it into the area.
Status PrefilledSharedMemory::complete(const fs::path& directory, std::uint32_t number,
                                       const AddressRanges& had, std::uint64_t size_bytes,
                                       PrefilledArea& area) {
  // The last page may reach beyond the end.
  const AddressRanges map =
      intersection(had, {{0, round_up(size_bytes, PrefilledArea::kPageBytes)}});
  GCR_ASSIGN(const UniqueFd file, criu_->open_mapped(area.reserved));
  const AddressRanges in_place = area.in_place();
  GCR_TRY(area.clear(*criu_, united(difference(in_place, map), area.empty_blocks()),
                     [&](const AddressRange& range) { return punch(file, range); }));
  if (::ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) {
    return Error::from_errno(errno, "cannot make shared memory as large as it was");
  }
  std::vector<MemoryFromFile> files;
  AddressRanges where;
  for (const AddressRange& range : difference(map, in_place)) {
    where.push_back({area.in_criu(range.start), area.in_criu(range.end)});
  }
  for (const std::string& name : images::names(directory)) {
    if (!name.starts_with(images::shared_memory_images(number) + "-")) continue;
    files.push_back({criu_->pid(), directory / name, where, 0 - area.base});
  }
  GCR_TRY(fill_from_files(files));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return Error::from_errno(errno, "cannot look at shared memory");
  }
  handed_over_[number] = {status.st_dev, status.st_ino};
  taken_bytes_ += bytes_of(intersection(in_place, map));
  GCR_TRY(criu_->ask({.what = Hold::kTakeShared,
                      .address = area.reserved.start,
                      .bytes = area.reserved.bytes(),
                      .number = number}));
  return {};
}

Status PrefilledSharedMemory::hand_over(const fs::path& directory,
                                        const std::map<std::uint32_t, std::uint32_t>& numbers) {
  GCR_ASSIGN(const auto maps, maps_in(directory));
  GCR_ASSIGN(const auto sizes, images::shared_memories(directory));
  std::map<std::uint32_t, PrefilledArea*> by_number;
  for (auto& [memory, area] : areas_) {
    const auto number = numbers.find(memory);
    if (number == numbers.end())
      return Error(Code::kDataLoss, "the images name no file for memory that arrived");
    by_number[number->second] = &area;
  }
  for (const auto& [number, map] : maps) {
    const auto size = sizes.find(number);
    if (size == sizes.end()) {
      return Error(Code::kDataLoss, fmt::format("CRIU's images lack the shared memory {}", number));
    }
    if (size->second > kMostSharedBytes) {
      return Error(Code::kDataLoss, fmt::format("the shared memory {} is too large", number));
    }
    const auto placed = by_number.find(number);
    if (placed != by_number.end()) {
      GCR_TRY(complete(directory, number, map, size->second, *placed->second));
    } else {
      GCR_ASSIGN(PrefilledArea area, make_area(size->second));
      GCR_TRY(complete(directory, number, map, size->second, area));
    }
  }
  return {};
}

Status PrefilledSharedMemory::check_taken(const std::map<pid_t, pid_t>& tasks) {
  if (handed_over_.empty()) return {};
  std::set<File> mapped;
  for (const auto& [inner, pid] : tasks) {
    for (const process::Mapping& mapping : process::named_mappings(pid, "/dev/zero")) {
      mapped.insert({mapping.device, mapping.inode});
    }
  }
  for (const auto& [number, file] : handed_over_) {
    if (mapped.contains(file)) continue;
    return Error(Code::kDataLoss,
                 fmt::format("CRIU has not taken over the shared memory {}", number));
  }
  return {};
}

}  // namespace gcr::criu

#include "migrate-agent/process/pages/write_tracker.h"

#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <filesystem>
#include <utility>

#include "src/base/pagemap_scan.h"

namespace gcr::process {
namespace {

/// UFFD_FEATURE_WP_ASYNC, which linux/userfaultfd.h has since 6.7.
constexpr std::uint64_t kAsynchronousWriteProtection = 1 << 15;

/// Pages are protected again no sooner than after so many times the time that it costs the process
/// to write to them once more.
constexpr int kRestPerCost = 4;
constexpr std::chrono::nanoseconds kCostOfFirstWrite{800};

/// What only shows the kernel's page of zeros, or is not there, is not protected: a write
/// to it makes a new page.
constexpr std::uint64_t kNoPages = pagemap::kIsTheZeroPage | pagemap::kIsFile;
constexpr PageKind kWrittenToBeProtected{.flags = pagemap::kNeedsAsync | pagemap::kProtectMatching,
                                         .all_of = pagemap::kIsWritten | pagemap::kIsPresent,
                                         .none_of = kNoPages};
constexpr PageKind kProtected{
    .flags = pagemap::kNeedsAsync, .all_of = pagemap::kIsPresent, .none_of = pagemap::kIsWritten};
/// Holes too.
constexpr PageKind kNotProtected{.flags = pagemap::kNeedsAsync, .all_of = pagemap::kIsWritten};

}  // namespace

Result<WriteTracker> WriteTracker::create(pid_t pid, UniqueFd userfaultfd) {
  // A request to a file of another kind could do anything.
  std::error_code error;
  const auto kind =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", userfaultfd.get()), error);
  if (error || kind != "anon_inode:[userfaultfd]") {
    return Error(Code::kUnsupported, fmt::format("process {} gave no userfaultfd", pid));
  }
  // Works once per descriptor: no other features were asked for.
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kAsynchronousWriteProtection;
  if (::ioctl(userfaultfd.get(), UFFDIO_API, &api) != 0) {
    return Error(Code::kUnsupported,
                 fmt::format("the userfaultfd of process {} does not track writes", pid));
  }
  return WriteTracker(pid, std::move(userfaultfd));
}

/// False if it cannot be tracked, for example because the process has a userfaultfd of its own
/// there.
bool WriteTracker::watch(const AddressRange& mapping) const {
  uffdio_register request{};
  request.range = {mapping.start, mapping.bytes()};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  return ::ioctl(userfaultfd_.get(), UFFDIO_REGISTER, &request) == 0;
}

void WriteTracker::unwatch(const AddressRange& mapping) const {
  uffdio_range range{mapping.start, mapping.bytes()};
  ::ioctl(userfaultfd_.get(), UFFDIO_UNREGISTER, &range);
}

/// Protects the pages in `mappings`, each of which is tracked, and gives those that were written.
/// What is not tracked any more is read in every round from now on.
AddressRanges WriteTracker::find_written(const PageScan& scan, const AddressRanges& mappings) {
  AddressRanges all;
  for (const AddressRange& mapping : mappings) {
    AddressRanges written;
    if (scan.find(kWrittenToBeProtected, mapping, written)) {
      for (const AddressRange& range : written) append(all, range);
    } else {
      distrust({mapping});
    }
  }
  return all;
}

/// Those of `mappings` that are tracked from now on.
AddressRanges WriteTracker::watch_all(const PageScan& scan, const AddressRanges& mappings) {
  AddressRanges watched;
  for (const AddressRange& mapping : mappings) {
    if (mapping.bytes() < kTrackedFrom || !watch(mapping)) continue;
    // Older kernels move the protection with pages, to where it has no effect.
    AddressRanges stale;
    if (scan.find(kProtected, mapping, stale) && stale.empty()) {
      watched.push_back(mapping);
    } else {
      unwatch(mapping);  // which ends what was left over
    }
  }
  tracked_ = united(tracked_, watched);
  return watched;
}

Result<AddressRanges> WriteTracker::round(const AddressRanges& mappings) {
  GCR_ASSIGN(const PageScan scan, PageScan::open(pid_));
  const AddressRanges known = intersection(mappings, tracked_);
  tracked_ = known;
  AddressRanges to_read = std::exchange(written_, {});
  if (const auto now = Clock::now(); now >= rest_until_) {
    written_ = find_written(scan, known);
    rest_until_ = now + kRestPerCost * kCostOfFirstWrite * (bytes_of(written_) / kPageBytes);
    const AddressRanges unknown = difference(difference(mappings, known), distrusted_);
    written_ = united(written_, find_written(scan, watch_all(scan, unknown)));
    to_read = united(to_read, written_);
  }
  GCR_ASSIGN(const AddressRanges others, present_pages(pid_, difference(mappings, tracked_)));
  return united(intersection(to_read, tracked_), others);
}

void WriteTracker::distrust(const AddressRanges& ranges) {
  distrusted_ = united(distrusted_, ranges);
  tracked_ = difference(tracked_, ranges);
}

Result<AddressRanges> WriteTracker::last_round(const AddressRanges& mappings,
                                               const AddressRanges& pages) const {
  GCR_ASSIGN(const PageScan scan, PageScan::open(pid_));
  AddressRanges unwritten;
  for (const AddressRange& mapping : intersection(mappings, tracked_)) {
    AddressRanges written;
    if (!scan.find(kNotProtected, mapping, written)) continue;
    for (const AddressRange& range : difference({mapping}, written)) append(unwritten, range);
  }
  return difference(pages, difference(unwritten, written_));
}

}  // namespace gcr::process

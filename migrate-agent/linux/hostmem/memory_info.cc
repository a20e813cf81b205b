#include "migrate-agent/linux/hostmem/memory_info.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::hostmem {

std::uint64_t HugepageCounters::pool() const { return free - std::min(free, reserved); }

std::uint64_t HugepageCounters::available() const {
  return pool() + (overcommit - std::min(overcommit, surplus));
}

std::uint64_t HugepageCounters::missing(std::uint64_t pages) const {
  if (pages <= pool()) return 0;
  const std::uint64_t wanted = surplus + (pages - pool());
  return wanted - std::min(wanted, overcommit);
}

Result<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (!(file >> number)) return Error(Code::kIo, fmt::format("cannot read a number from {}", path));
  return number;
}

Status write_number(const std::string& path, std::uint64_t number) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_TRUNC));
  if (!file) return Error::from_errno(errno, fmt::format("opening {}", path));
  const std::string text = fmt::format("{}\n", number);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return Error::from_errno(errno, fmt::format("writing {} to {}", number, path));
  }
  return {};
}

Result<HugepageCounters> hugepage_counters(const std::string& directory) {
  HugepageCounters counters;
  const std::pair<const char*, std::uint64_t*> files[] = {
      {"free_hugepages", &counters.free},
      {"resv_hugepages", &counters.reserved},
      {"surplus_hugepages", &counters.surplus},
      {"nr_overcommit_hugepages", &counters.overcommit},
  };
  for (const auto& [name, value] : files) {
    auto number = read_number(directory + "/" + name);
    if (!number) {
      return Error(Code::kUnsupported,
                   "the kernel has no hugepages of 2 MiB: " + number.error().message());
    }
    *value = *number;
  }
  return counters;
}

Result<std::uint64_t> free_hugepage_bytes() {
  GCR_ASSIGN(const HugepageCounters counters, hugepage_counters());
  return counters.available() * kChunkBytes;
}

Result<std::uint64_t> available_memory_bytes() {
  static constexpr std::string_view kField = "MemAvailable:";
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kibibytes = 0;
    if (name == kField && file >> kibibytes) return kibibytes * kKiB;
    file.ignore(256, '\n');
  }
  return Error(Code::kIo, "/proc/meminfo does not say how much memory is available");
}

}  // namespace gcr::hostmem

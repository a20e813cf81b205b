// How limits are read and applied. The effective limit is the tightest one of a group and all
// groups above it (Levels::least); for CPUs and memory nodes the kernel computes the effective list
// itself. proto::GroupLimits has the limits of version 2. Version 1 has other file names, and
// limits memory and swap together, so the swap limit is converted.
#include "migrate-agent/linux/cgroups/limits.h"

#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <bitset>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::cgroups {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLimiting[] = {"memory", "pids", "cpu", "cpuset", "devices"};

/// Version 1 reports a larger number, the greatest count of whole pages, for "no limit".
constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value >= kMost) return std::nullopt;
  return value;
}

/// A group and all its visible ancestors, the group first.
class Levels {
 public:
  Levels(const Hierarchy& hierarchy, const fs::path& group) : version_(hierarchy.version) {
    for (fs::path at = group; at != hierarchy.mount; at = at.parent_path()) groups_.push_back(at);
    groups_.push_back(hierarchy.mount);
  }

  Version version() const { return version_; }
  bool is_of_version_one() const { return version_ == Version::kOne; }

  const char* either(const char* one, const char* two) const {
    return is_of_version_one() ? one : two;
  }

  std::optional<std::uint64_t> least(const char* file) const {
    std::optional<std::uint64_t> least;
    for (const fs::path& group : groups_) {
      const auto here = number(first_line(group / file));
      if (here && (!least || *here < *least)) least = here;
    }
    return least;
  }

  /// Returns the list of the lowest group that has the file; empty if it equals that of the whole
  /// host.
  std::string list(const char* file) const {
    std::error_code error;
    const auto found = std::ranges::find_if(
        groups_, [&](const fs::path& group) { return fs::exists(group / file, error); });
    if (found == groups_.end()) return {};
    const std::string here = first_line(*found / file);
    return here == first_line(groups_.back() / file) ? "" : here;
  }

  const std::vector<fs::path>& groups() const { return groups_; }

 private:
  Version version_;
  std::vector<fs::path> groups_;
};

void read_memory(const Levels& levels, proto::GroupLimits& limits) {
  const auto memory = levels.least(levels.either("memory.limit_in_bytes", "memory.max"));
  if (memory) limits.set_memory_bytes(*memory);
  auto swap = levels.least(levels.either("memory.memsw.limit_in_bytes", "memory.swap.max"));
  if (swap && levels.is_of_version_one()) *swap -= std::min(*swap, memory.value_or(0));
  if (swap) limits.set_swap_bytes(*swap);
}

void read_processes(const Levels& levels, proto::GroupLimits& limits) {
  if (const auto most = levels.least("pids.max")) limits.set_processes(*most);
}

void read_cpu_time(const Levels& levels, proto::GroupLimits& limits) {
  for (const fs::path& group : levels.groups()) {
    std::string text = first_line(group / levels.either("cpu.cfs_quota_us", "cpu.max"));
    if (levels.is_of_version_one()) text += ' ' + first_line(group / "cpu.cfs_period_us");
    std::istringstream fields(text);
    std::string quota_text;
    std::uint64_t period = 0;
    fields >> quota_text >> period;
    const auto quota = number(quota_text);
    if (!quota || period == 0) continue;
    const bool tighter =
        !limits.has_cpu_quota_us() || static_cast<double>(*quota) / static_cast<double>(period) <
                                          static_cast<double>(limits.cpu_quota_us()) /
                                              static_cast<double>(limits.cpu_period_us());
    if (!tighter) continue;
    limits.set_cpu_quota_us(*quota);
    limits.set_cpu_period_us(period);
  }
}

/// Name of the file with the CPUs that a group may use, by its own limits and those of all groups
/// above it.
const char* cpus_file(Version version) {
  return version == Version::kOne ? "cpuset.effective_cpus" : "cpuset.cpus.effective";
}

const char* nodes_file(Version version) {
  return version == Version::kOne ? "cpuset.effective_mems" : "cpuset.mems.effective";
}

void read_cpus(const Levels& levels, proto::GroupLimits& limits) {
  limits.set_cpus(levels.list(cpus_file(levels.version())));
  limits.set_memory_nodes(levels.list(nodes_file(levels.version())));
}

/// A file of a controller and the text to write to it.
struct Setting {
  std::string file;
  std::string text;
};

std::vector<Setting> settings(std::string_view controller, Version version,
                              const proto::GroupLimits& limits) {
  const bool one = version == Version::kOne;
  std::vector<Setting> all;
  const auto set = [&](const char* file, auto value) {
    all.push_back({file, fmt::format("{}", value)});
  };
  if (controller == "memory") {
    if (limits.has_memory_bytes())
      set(one ? "memory.limit_in_bytes" : "memory.max", limits.memory_bytes());
    if (limits.has_swap_bytes())
      set(one ? "memory.memsw.limit_in_bytes" : "memory.swap.max",
          limits.swap_bytes() + (one ? limits.memory_bytes() : 0));
  } else if (controller == "pids") {
    if (limits.has_processes()) set("pids.max", limits.processes());
  } else if (controller == "cpu") {
    if (!limits.has_cpu_quota_us()) return all;
    if (!one) {
      set("cpu.max", fmt::format("{} {}", limits.cpu_quota_us(), limits.cpu_period_us()));
    } else {
      set("cpu.cfs_period_us", limits.cpu_period_us());
      set("cpu.cfs_quota_us", limits.cpu_quota_us());
    }
  } else if (controller == "cpuset") {
    if (!limits.cpus().empty()) set("cpuset.cpus", limits.cpus());
    if (!limits.memory_nodes().empty()) set("cpuset.mems", limits.memory_nodes());
  }
  return all;
}

bool is_needed(std::string_view controller, const proto::GroupLimits& limits) {
  if (controller == "devices") return limits.has_devices();
  return !settings(controller, Version::kTwo, limits).empty();
}

/// More than a kernel supports.
constexpr std::size_t kMostCpus = 16384;
using Members = std::bitset<kMostCpus>;

/// Parses "0-3,8". None for text that no kernel writes.
std::optional<Members> members(const std::string& list) {
  Members found;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    const auto first = number(range);
    const std::size_t dash = range.find('-');
    const auto last =
        dash == std::string::npos ? first : number(std::string_view(range).substr(dash + 1));
    if (!first || !last || *last >= kMostCpus) return std::nullopt;
    for (std::uint64_t at = *first; at <= *last; ++at) found.set(at);
  }
  return found;
}

bool has_all(const fs::path& file, const std::string& wanted) {
  const auto here = members(first_line(file));
  const auto there = members(wanted);
  return here && there && (*there & ~*here).none();
}

/// Appends a sentence for each list of which this host lacks a part.
void compare_cpus(const Hierarchy& cpuset, const proto::GroupLimits& limits,
                  std::vector<std::string>& sentences) {
  if (!has_all(cpuset.mount / cpus_file(cpuset.version), limits.cpus()))
    sentences.push_back(fmt::format("this host lacks some of the CPUs {}", limits.cpus()));
  if (!has_all(cpuset.mount / nodes_file(cpuset.version), limits.memory_nodes()))
    sentences.push_back(
        fmt::format("this host lacks some of the memory nodes {}", limits.memory_nodes()));
}

/// Enables a controller for the groups at the top of a version 2 hierarchy.
Status enable(const Hierarchy& hierarchy, std::string_view controller) {
  if (hierarchy.version == Version::kOne || controller == "devices") return {};
  std::istringstream enabled(procfs::read_text(hierarchy.mount / "cgroup.subtree_control"));
  for (std::string one; enabled >> one;) {
    if (one == controller) return {};
  }
  return write(hierarchy.mount / "cgroup.subtree_control", fmt::format("+{}", controller));
}

/// Fills empty lists of a version 1 group from the root: without CPUs and memory nodes no process
/// can join it.
Status fill_cpuset(const Hierarchy& hierarchy, const fs::path& group) {
  if (hierarchy.version != Version::kOne) return {};
  for (const char* file : {"cpuset.cpus", "cpuset.mems"}) {
    if (!first_line(group / file).empty()) continue;
    GCR_TRY(write(group / file, first_line(hierarchy.mount / file)));
  }
  return {};
}

Status apply_in(const Hierarchy& hierarchy, std::string_view controller, const std::string& name,
                const proto::GroupLimits& limits) {
  GCR_TRY(enable(hierarchy, controller));
  GCR_TRY(make_group(hierarchy, name));
  const fs::path group = hierarchy.mount / name;
  if (controller == "devices") return limit_devices(hierarchy, group, limits.devices());
  for (const Setting& setting : settings(controller, hierarchy.version, limits)) {
    GCR_TRY(write(group / setting.file, setting.text));
  }
  return controller == "cpuset" ? fill_cpuset(hierarchy, group) : Status();
}

}  // namespace

Status make_group(const Hierarchy& hierarchy, const std::string& name) {
  const fs::path group = hierarchy.mount / name;
  if (::mkdir(group.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return Error::from_errno(errno, "cannot make the control group " + group.string());
}

Result<proto::GroupLimits> limits_of(const std::vector<Hierarchy>& hierarchies, pid_t pid) {
  struct Reader {
    std::string_view controller;
    void (*read)(const Levels&, proto::GroupLimits&);
  };
  static constexpr Reader kReaders[] = {{"memory", read_memory},
                                        {"pids", read_processes},
                                        {"cpu", read_cpu_time},
                                        {"cpuset", read_cpus}};
  proto::GroupLimits limits;
  for (const Membership& membership : memberships(pid)) {
    const auto hierarchy = std::ranges::find_if(
        hierarchies, [&](const Hierarchy& one) { return is_of(one, membership); });
    const auto group =
        hierarchy == hierarchies.end() ? std::nullopt : hierarchy->directory_of(membership.group);
    if (!group && membership.group == "/") continue;
    if (!group) {
      return Error(Code::kUnsupported,
                   fmt::format("the limits of the control group {} are not visible to the agent",
                               membership.group));
    }
    const Levels levels(*hierarchy, *group);
    for (const Reader& reader : kReaders) {
      if (hierarchy->has(reader.controller)) reader.read(levels, limits);
    }
  }
  GCR_ASSIGN(auto devices, devices_of(hierarchies, pid));
  if (devices) *limits.mutable_devices() = std::move(*devices);
  return limits;
}

std::vector<std::string> unsupported_limits(const std::vector<Hierarchy>& hierarchies,
                                            const proto::GroupLimits& limits) {
  std::vector<std::string> sentences;
  for (const std::string_view controller : kLimiting) {
    if (!is_needed(controller, limits)) continue;
    const auto hierarchy = find(hierarchies, controller);
    if (!hierarchy) {
      sentences.push_back(hierarchy.error().message());
    } else if (controller == "cpuset") {
      compare_cpus(*hierarchy, limits, sentences);
    }
  }
  return sentences;
}

Status apply_limits(const std::vector<Hierarchy>& hierarchies, const std::string& name,
                    const proto::GroupLimits& limits) {
  for (const std::string_view controller : kLimiting) {
    if (!is_needed(controller, limits)) continue;
    GCR_ASSIGN(const Hierarchy hierarchy, find(hierarchies, controller));
    GCR_TRY(apply_in(hierarchy, controller, name, limits));
  }
  return {};
}

std::string describe(const proto::GroupLimits& limits) {
  std::vector<std::string> words;
  if (limits.has_memory_bytes())
    words.push_back(fmt::format("memory of {} bytes", limits.memory_bytes()));
  if (limits.has_swap_bytes())
    words.push_back(fmt::format("swap of {} bytes", limits.swap_bytes()));
  if (limits.has_processes()) words.push_back(fmt::format("{} processes", limits.processes()));
  if (limits.has_cpu_quota_us())
    words.push_back(fmt::format("{} us of CPU time every {} us", limits.cpu_quota_us(),
                                limits.cpu_period_us()));
  if (!limits.cpus().empty()) words.push_back("CPUs " + limits.cpus());
  if (!limits.memory_nodes().empty()) words.push_back("memory nodes " + limits.memory_nodes());
  if (limits.has_devices())
    words.push_back(fmt::format("{} devices", limits.devices().allowed_size()));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace gcr::cgroups

#include "migrate-agent/freezer/hierarchy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "migrate-agent/process/procfs.h"

namespace gcr::freezer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kController = "freezer";

/// Whether `list`, comma separated, has `wanted`.
bool has(const std::string& list, std::string_view wanted) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == wanted) return true;
  }
  return false;
}

/// Why groups cannot be made there; empty if they can.
std::string unusable(const Hierarchy& hierarchy) {
  if (::access(hierarchy.mount.c_str(), W_OK) != 0) {
    return fmt::format("{} cannot be written to", hierarchy.mount.string());
  }
  return {};
}

}  // namespace

fs::path Hierarchy::directory_of(const std::string& group) const {
  std::string below = group;
  if (root != "/" && below.starts_with(root)) below.erase(0, root.size());
  return mount / fs::path(below).relative_path();
}

std::vector<Hierarchy> hierarchies(const std::string& mountinfo) {
  std::vector<Hierarchy> found;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // 36 35 98:0 ROOT MOUNT OPTIONS … - TYPE SOURCE SUPER-OPTIONS (proc_pid_mountinfo(5))
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string skip;
    std::string root;
    std::string mount;
    std::istringstream(line) >> skip >> skip >> skip >> root >> mount;
    std::string type;
    std::string options;
    std::istringstream(line.substr(dash + 3)) >> type >> skip >> options;
    if (type == "cgroup2") found.push_back({Version::kTwo, mount, root});
    if (type == "cgroup" && has(options, kController)) {
      found.push_back({Version::kOne, mount, root});
    }
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &Hierarchy::version);
  return found;
}

Result<Hierarchy> find_hierarchy() {
  std::string why = "neither control groups of version 2 nor the freezer of version 1 are mounted";
  for (Hierarchy& hierarchy : hierarchies(procfs::read_text("/proc/self/mountinfo"))) {
    why = unusable(hierarchy);
    if (why.empty()) return std::move(hierarchy);
  }
  return Error(Code::kUnsupported, why);
}

Result<std::string> group_of(const Hierarchy& hierarchy, pid_t pid) {
  std::istringstream lines(procfs::read_text(fmt::format("/proc/{}/cgroup", pid)));
  for (std::string line; std::getline(lines, line);) {
    // HIERARCHY:CONTROLLERS:GROUP, "0::" for version 2 (cgroups(7))
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool here = hierarchy.version == Version::kTwo ? line.starts_with("0::")
                                                         : has(controllers, kController);
    if (here) return line.substr(second + 1);
  }
  return Error(Code::kNotFound, fmt::format("process {} is in no group that can be frozen", pid));
}

}  // namespace gcr::freezer

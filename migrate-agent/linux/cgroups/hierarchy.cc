#include "migrate-agent/linux/cgroups/hierarchy.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::cgroups {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words(const std::string& list, char separator) {
  std::vector<std::string> found;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, separator);) found.push_back(word);
  return found;
}

/// Returns the controllers of version 2. No file lists the last two: the freezer is in the kernel's
/// core, devices are handled by BPF.
std::vector<std::string> controllers_of_v2(const fs::path& mount) {
  std::istringstream listed(procfs::read_text(mount / "cgroup.controllers"));
  std::vector<std::string> found{std::istream_iterator<std::string>(listed), {}};
  found.insert(found.end(), {std::string(kFreezer), "devices"});
  return found;
}

}  // namespace

bool Hierarchy::has(std::string_view controller) const {
  return std::ranges::find(controllers, controller) != controllers.end();
}

std::optional<fs::path> Hierarchy::directory_of(const std::string& group) const {
  std::string below = group;
  if (root != "/") {
    if (!(group + '/').starts_with(root + '/')) return std::nullopt;
    below.erase(0, root.size());
  }
  // A group outside the root of a cgroup namespace is named relative to that root: "/../…".
  if ((below + '/').starts_with("/../")) return std::nullopt;
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
    Hierarchy hierarchy;
    std::string mount;
    std::istringstream(line) >> skip >> skip >> skip >> hierarchy.root >> mount;
    hierarchy.mount = mount;
    std::string type;
    std::string options;
    std::istringstream(line.substr(dash + 3)) >> type >> skip >> options;
    if (type == "cgroup2") {
      hierarchy.version = Version::kTwo;
      hierarchy.controllers = controllers_of_v2(mount);
    } else if (type == "cgroup") {
      hierarchy.version = Version::kOne;
      hierarchy.controllers = words(options, ',');
    } else {
      continue;
    }
    found.push_back(std::move(hierarchy));
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &Hierarchy::version);
  return found;
}

std::vector<Hierarchy> hierarchies() {
  return hierarchies(procfs::read_text("/proc/self/mountinfo"));
}

Result<Hierarchy> find(const std::vector<Hierarchy>& hierarchies, std::string_view controller) {
  std::string why =
      fmt::format("no control groups with the controller \"{}\" are mounted", controller);
  for (const Hierarchy& hierarchy : hierarchies) {
    if (!hierarchy.has(controller)) continue;
    if (::access(hierarchy.mount.c_str(), W_OK) == 0) return hierarchy;
    why = fmt::format("{} is not writable", hierarchy.mount.string());
  }
  return Error(Code::kUnsupported, why);
}

std::vector<Membership> memberships(pid_t pid) {
  std::vector<Membership> found;
  std::istringstream lines(procfs::read_text(fmt::format("/proc/{}/cgroup", pid)));
  for (std::string line; std::getline(lines, line);) {
    // HIERARCHY:CONTROLLERS:GROUP, "0::GROUP" for version 2 (cgroups(7))
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    found.push_back(
        {words(line.substr(first + 1, second - first - 1), ','), line.substr(second + 1)});
  }
  return found;
}

bool is_of(const Hierarchy& hierarchy, const Membership& membership) {
  if (hierarchy.version == Version::kTwo) return membership.controllers.empty();
  return std::ranges::any_of(membership.controllers,
                             [&](const std::string& one) { return hierarchy.has(one); });
}

Result<std::string> group_of(const Hierarchy& hierarchy, pid_t pid) {
  for (const Membership& membership : memberships(pid)) {
    if (is_of(hierarchy, membership)) return membership.group;
  }
  return Error(Code::kNotFound,
               fmt::format("process {} is in no group of {}", pid, hierarchy.mount.string()));
}

Status write(const fs::path& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return {};
  }
  return Error::from_errno(errno, "cannot write \"" + text + "\" to " + path.string());
}

}  // namespace gcr::cgroups

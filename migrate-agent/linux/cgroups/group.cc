// How a group is frozen and emptied. Version 2 freezes on one request and reports the end in
// cgroup.events; version 1 has no event and may miss a thread that enters another stop, so the
// request is repeated until freezer.state is FROZEN. To empty a group, its processes are moved away
// (dissolve) or killed (destroy) in passes until a pass finds none: they may fork meanwhile. All
// waits end after kPatience.
#include "migrate-agent/linux/cgroups/group.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include "migrate-agent/linux/cgroups/limits.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::cgroups {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};
constexpr int kPollMs = 1;
constexpr char kProcesses[] = "cgroup.procs";

Error still_running(const fs::path& directory) {
  return Error(Code::kTimeout,
               "cannot freeze " + directory.string() + ": after 10 s a thread in it still runs");
}

/// Removes the directory, and retries while it is busy: ended processes leave a group a moment
/// later.
Status remove_directory(const fs::path& directory) {
  const auto deadline = Clock::now() + kPatience;
  while (::rmdir(directory.c_str()) != 0 && errno != ENOENT) {
    if (errno != EBUSY || Clock::now() > deadline) {
      return Error::from_errno(errno, "cannot remove the control group " + directory.string());
    }
    ::poll(nullptr, 0, kPollMs);
  }
  return {};
}

}  // namespace

Group::Group(std::vector<Hierarchy> hierarchies, std::string name)
    : hierarchies_(std::move(hierarchies)), name_(std::move(name)) {
  auto freezer = find(hierarchies_, kFreezer);
  if (!freezer) return;
  directory_ = freezer->mount / name_;
  freezer_ = std::move(*freezer);
}

bool Group::exists() const {
  std::error_code error;
  return freezer_ && fs::exists(directory_, error);
}

bool Group::is_empty() const { return procfs::read_text(directory_ / kProcesses).empty(); }

Status Group::create() const {
  if (!freezer_) return {};
  return make_group(*freezer_, name_);
}

Status Group::create(const proto::GroupLimits& limits) const {
  GCR_TRY(create());
  return apply_limits(hierarchies_, name_, limits);
}

Result<std::vector<UniqueFd>> Group::entries() const {
  std::vector<UniqueFd> files;
  for (const Hierarchy& hierarchy : hierarchies_) {
    const fs::path path = hierarchy.mount / name_ / kProcesses;
    UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file && errno == ENOENT) continue;
    if (!file) return Error::from_errno(errno, "cannot open " + path.string());
    files.push_back(std::move(file));
  }
  return files;
}

Status Group::add(const procfs::Process& process) const {
  if (!freezer_) return {};
  // Joins by PID, then checks that the process was still there.
  GCR_TRY(write(directory_ / kProcesses, std::to_string(process.pid())));
  if (process.send(0)) return {};
  return Error(Code::kNotFound, "process " + std::to_string(process.pid()) + " has ended");
}

Status Group::freeze() const {
  if (!freezer_) return {};
  return freezer_->version == Version::kTwo ? freeze_v2() : freeze_v1();
}

Status Group::freeze_v1() const {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    GCR_TRY(write(directory_ / "freezer.state", "FROZEN"));
    if (procfs::read_text(directory_ / "freezer.state").starts_with("FROZEN")) return {};
    if (Clock::now() > deadline) return still_running(directory_);
    ::poll(nullptr, 0, kPollMs);
  }
}

Status Group::freeze_v2() const {
  const auto deadline = Clock::now() + kPatience;
  const UniqueFd events(::open((directory_ / "cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  if (!events) return Error::from_errno(errno, "cannot watch " + directory_.string());
  GCR_TRY(write(directory_ / "cgroup.freeze", "1"));
  for (;;) {
    char text[256] = {};
    if (::pread(events.get(), text, sizeof(text) - 1, 0) < 0) {
      return Error::from_errno(errno, "cannot watch " + directory_.string());
    }
    const std::string_view seen = text;
    // A group without processes is never frozen.
    if (seen.find("frozen 1") != seen.npos || seen.find("populated 0") != seen.npos) return {};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return still_running(directory_);
    pollfd changed{events.get(), POLLPRI, 0};
    ::poll(&changed, 1, static_cast<int>(left.count()));
  }
}

Result<bool> Group::is_frozen() const {
  if (!exists()) return false;
  const bool two = freezer_->version == Version::kTwo;
  const std::string text =
      procfs::read_text(directory_ / (two ? "cgroup.freeze" : "freezer.self_freezing"));
  if (text.starts_with("0") || text.starts_with("1")) return text[0] == '1';
  return Error(Code::kIo, "cannot tell whether " + directory_.string() + " is frozen");
}

Status Group::thaw() const {
  if (!exists()) return {};
  return freezer_->version == Version::kTwo ? write(directory_ / "cgroup.freeze", "0")
                                            : write(directory_ / "freezer.state", "THAWED");
}

Status Group::until_empty(const std::function<Status(const std::string& pid)>& evict) const {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    bool found = false;
    std::ifstream processes(directory_ / kProcesses);
    for (std::string pid; std::getline(processes, pid);) {
      found = true;
      const Status gone = evict(pid);
      if (!gone && procfs::state(pid) != '\0') return gone;
    }
    if (!found) return {};
    if (Clock::now() > deadline) {
      return Error(Code::kTimeout, directory_.string() + " still has processes after 10 s");
    }
    ::poll(nullptr, 0, kPollMs);
  }
}

Status Group::remove() const {
  for (const Hierarchy& hierarchy : hierarchies_) {
    GCR_TRY(remove_directory(hierarchy.mount / name_));
  }
  return {};
}

Status Group::dissolve(const Homes& home) const {
  if (!exists()) return {};
  GCR_TRY(thaw());
  GCR_ASSIGN(const std::string own, group_of(*freezer_, ::getpid()));
  const fs::path fallback = freezer_->directory_of(own).value_or(freezer_->mount);
  GCR_TRY(until_empty([&](const std::string& pid) {
    const std::string wanted = home ? home(std::stoi(pid)) : "";
    std::error_code error;
    const auto target = freezer_->directory_of(wanted);
    const bool there = !wanted.empty() && target && fs::exists(*target / kProcesses, error);
    return write((there ? *target : fallback) / kProcesses, pid);
  }));
  return remove();
}

Status Group::destroy() const {
  const auto kill = [this](const std::string& pid) -> Status {
    GCR_ASSIGN(const auto process, procfs::Process::open(std::stoi(pid)));
    // A process with a reused PID is killed only if it is in the group.
    if (contains(process)) GCR_TRY(process.send(SIGKILL));
    return thaw();
  };
  if (exists()) GCR_TRY(until_empty(kill));
  return remove();
}

fs::path Group::directory_for_criu() const {
  return freezer_ && freezer_->version == Version::kTwo ? directory_ : fs::path();
}

Result<std::string> Group::home_of(pid_t pid) const {
  if (!freezer_) return std::string();
  return group_of(*freezer_, pid);
}

std::vector<pid_t> Group::processes() const {
  std::vector<pid_t> found;
  std::istringstream numbers(procfs::read_text(directory_ / kProcesses));
  if (freezer_) found.assign(std::istream_iterator<pid_t>(numbers), {});
  return found;
}

bool Group::contains(const procfs::Process& process) const {
  if (!freezer_) return false;
  const auto group = group_of(*freezer_, process.pid());
  return group && freezer_->directory_of(*group) == directory_ && !process.has_ended();
}

Result<Group> group_in_container(const std::vector<Hierarchy>& hierarchies,
                                 const std::string& parent, const std::string& name) {
  const auto freezer = find(hierarchies, kFreezer);
  if (!freezer) return Group();
  const auto directory = freezer->directory_of(parent);
  if (directory) return Group({*freezer}, directory->lexically_relative(freezer->mount) / name);
  return Error(Code::kUnsupported,
               fmt::format("the control group {} of the container is not visible here", parent));
}

Result<std::vector<UniqueFd>> entries_of(const std::vector<Hierarchy>& hierarchies, pid_t pid,
                                         const Group& group) {
  GCR_ASSIGN(std::vector<UniqueFd> files, group.entries());
  const auto freezer = find(hierarchies, kFreezer);
  for (const Hierarchy& hierarchy : hierarchies) {
    if (freezer && hierarchy.mount == freezer->mount) continue;
    GCR_ASSIGN(const std::string name, group_of(hierarchy, pid));
    const auto directory = hierarchy.directory_of(name);
    if (!directory) {
      return Error(
          Code::kUnsupported,
          fmt::format("the control group {} of process {} is not visible here", name, pid));
    }
    const fs::path path = *directory / kProcesses;
    UniqueFd& file = files.emplace_back(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) return Error::from_errno(errno, "cannot open " + path.string());
  }
  return files;
}

std::set<std::string> empty_groups(const std::vector<Hierarchy>& hierarchies) {
  std::set<std::string> found;
  for (const Hierarchy& hierarchy : hierarchies) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(hierarchy.mount, error)) {
      const std::string name = entry.path().filename();
      if (name.starts_with(kGroupPrefix) && procfs::read_text(entry.path() / kProcesses).empty()) {
        found.insert(name);
      }
    }
  }
  return found;
}

void remove_empty(const std::vector<Hierarchy>& hierarchies,
                  const std::vector<std::string>& names) {
  for (const Hierarchy& hierarchy : hierarchies) {
    for (const std::string& name : names) {
      // The kernel refuses if the group has processes.
      if (name.starts_with(kGroupPrefix)) ::rmdir((hierarchy.mount / name).c_str());
    }
  }
}

}  // namespace gcr::cgroups

#include "migrate-agent/freezer/freezer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "migrate-agent/process/procfs.h"

namespace gcr::freezer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};
constexpr int kLookMs = 1;
constexpr char kProcesses[] = "cgroup.procs";

Status write_file(const fs::path& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return {};
  }
  return Error::from_errno(errno, "cannot write \"" + text + "\" to " + path.string());
}

Error still_running(const fs::path& directory) {
  return Error(Code::kTimeout, directory.string() + " does not freeze");
}

}  // namespace

Group::Group(Hierarchy hierarchy, const std::string& name)
    : hierarchy_(std::move(hierarchy)), directory_(hierarchy_->mount / name) {}

bool Group::exists() const {
  std::error_code error;
  return hierarchy_ && fs::exists(directory_, error);
}

Status Group::create() const {
  if (!hierarchy_ || ::mkdir(directory_.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return Error::from_errno(errno, "cannot make the control group " + directory_.string());
}

Result<UniqueFd> Group::entry() const {
  if (!hierarchy_) return UniqueFd();
  UniqueFd file(::open((directory_ / kProcesses).c_str(), O_WRONLY | O_CLOEXEC));
  if (file) return file;
  return Error::from_errno(errno, "cannot open the control group " + directory_.string());
}

Status Group::write(const char* file, const std::string& text) const {
  return write_file(directory_ / file, text);
}

Status Group::add(const procfs::Process& process) const {
  if (!hierarchy_) return {};
  // By number: what went in is looked at afterwards.
  GCR_TRY(write(kProcesses, std::to_string(process.pid())));
  if (process.send(0)) return {};
  return Error(Code::kNotFound, "process " + std::to_string(process.pid()) + " has ended");
}

Status Group::freeze() const {
  if (!hierarchy_) return {};
  return hierarchy_->version == Version::kTwo ? freeze_v2() : freeze_v1();
}

/// Says so again each time: a thread on its way into another stop misses the first.
Status Group::freeze_v1() const {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    GCR_TRY(write("freezer.state", "FROZEN"));
    if (procfs::read_text(directory_ / "freezer.state").starts_with("FROZEN")) return {};
    if (Clock::now() > deadline) return still_running(directory_);
    ::poll(nullptr, 0, kLookMs);
  }
}

Status Group::freeze_v2() const {
  const auto deadline = Clock::now() + kPatience;
  const UniqueFd events(::open((directory_ / "cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  if (!events) return Error::from_errno(errno, "cannot watch " + directory_.string());
  GCR_TRY(write("cgroup.freeze", "1"));
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
  const bool two = hierarchy_->version == Version::kTwo;
  const std::string text =
      procfs::read_text(directory_ / (two ? "cgroup.freeze" : "freezer.self_freezing"));
  if (text.starts_with("0") || text.starts_with("1")) return text[0] == '1';
  return Error(Code::kIo, "cannot tell whether " + directory_.string() + " is frozen");
}

Status Group::thaw() const {
  if (!exists()) return {};
  return hierarchy_->version == Version::kTwo ? write("cgroup.freeze", "0")
                                              : write("freezer.state", "THAWED");
}

/// Until nobody is in there: they may fork meanwhile.
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
      return Error(Code::kTimeout, directory_.string() + " does not become empty");
    }
    ::poll(nullptr, 0, kLookMs);
  }
}

/// Who has ended leaves a moment later.
Status Group::remove() const {
  const auto deadline = Clock::now() + kPatience;
  while (::rmdir(directory_.c_str()) != 0 && errno != ENOENT) {
    if (errno != EBUSY || Clock::now() > deadline) {
      return Error::from_errno(errno, "cannot remove the control group " + directory_.string());
    }
    ::poll(nullptr, 0, kLookMs);
  }
  return {};
}

Status Group::dissolve(const std::string& home) const {
  if (!exists()) return {};
  GCR_TRY(thaw());
  GCR_ASSIGN(const std::string own, group_of(*hierarchy_, ::getpid()));
  std::error_code error;
  fs::path target = hierarchy_->directory_of(home);
  if (home.empty() || !fs::exists(target / kProcesses, error))
    target = hierarchy_->directory_of(own);
  GCR_TRY(
      until_empty([&](const std::string& pid) { return write_file(target / kProcesses, pid); }));
  return remove();
}

Status Group::destroy() const {
  if (!exists()) return {};
  GCR_TRY(until_empty([this](const std::string& pid) -> Status {
    GCR_ASSIGN(const auto process, procfs::Process::open(std::stoi(pid)));
    // Whoever has the number now is killed only if it is in here.
    GCR_ASSIGN(const std::string group, group_of(*hierarchy_, process.pid()));
    if (hierarchy_->directory_of(group) == directory_) GCR_TRY(process.send(SIGKILL));
    return thaw();
  }));
  return remove();
}

fs::path Group::directory_for_criu() const {
  return hierarchy_ && hierarchy_->version == Version::kTwo ? directory_ : fs::path();
}

Result<std::string> Group::home_of(const procfs::Process& process) const {
  if (!hierarchy_) return std::string();
  return group_of(*hierarchy_, process.pid());
}

}  // namespace gcr::freezer

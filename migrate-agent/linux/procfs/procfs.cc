#include "migrate-agent/linux/procfs/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace gcr::procfs {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStopTimeout{10};
constexpr unsigned long kExiting = 0x4;  // PF_EXITING in the flags of stat

/// Returns the numeric names in a directory of /proc.
std::vector<pid_t> numbers_in(const std::string& directory) {
  std::vector<pid_t> numbers;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    pid_t number = 0;
    const auto [stop, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (problem == std::errc{} && stop == name.data() + name.size()) numbers.push_back(number);
  }
  return numbers;
}

/// Returns the rest of the line "`name`:" without leading blanks; empty if there is none.
std::string field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0 || line[name.size()] != ':') continue;
    const std::size_t start = line.find_first_not_of(" \t", name.size() + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace

UniqueFd pidfd_of_child(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool send_signal(int pidfd, int signal_number) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal_number, nullptr, 0) == 0;
}

Result<UniqueFd> open_pidfd(pid_t pid) {
  UniqueFd pidfd = pidfd_of_child(pid);
  if (!pidfd) {
    const std::string doing = "cannot open process " + std::to_string(pid);
    if (errno == ESRCH || errno == EINVAL)
      return Error(Code::kNotFound, doing + ": no such process");
    return Error::from_errno(errno, doing);
  }
  return pidfd;
}

std::map<std::string, std::string> status_fields(const std::string& task) {
  std::istringstream lines(read_text("/proc/" + task + "/status"));
  std::map<std::string, std::string> fields;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t start = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
    fields[line.substr(0, colon)] = line.substr(start);
  }
  return fields;
}

std::uint64_t bits_in(const std::map<std::string, std::string>& status, const std::string& name) {
  const auto found = status.find(name);
  return found == status.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 16);
}

pid_t innermost_pid(const std::map<std::string, std::string>& status) {
  const auto found = status.find("NSpid");
  pid_t last = 0;
  if (found == status.end()) return last;
  std::istringstream pids(found->second);
  for (pid_t pid = 0; pids >> pid;) last = pid;
  return last;
}

std::string status_field(const std::string& task, const std::string& name) {
  return field_of("/proc/" + task + "/status", name);
}

std::string descriptor_field(pid_t pid, int number, const std::string& name) {
  return field_of(fmt::format("/proc/{}/fdinfo/{}", pid, number), name);
}

std::uint64_t status_bits(const std::string& task, const std::string& name) {
  return std::strtoull(status_field(task, name).c_str(), nullptr, 16);
}

UniqueFd hold(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC));
}

int own_proc() {
  static const UniqueFd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return proc.get();
}

std::string read_own_proc(const std::string& path) {
  const UniqueFd file(::openat(own_proc(), path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 1 << 16> part;
  ssize_t got = 0;
  while ((got = ::read(file.get(), part.data(), part.size())) > 0) text.append(part.data(), got);
  return got == 0 ? text : "";
}

UniqueFd open_regular(const UniqueFd& held) {
  // AT_STATX_DONT_SYNC: do not ask a file server.
  struct statx status {};
  if (::statx(held.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0) {
    return {};
  }
  if (!S_ISREG(status.stx_mode)) {
    errno = EINVAL;
    return {};
  }
  const std::string path = "self/fd/" + std::to_string(held.get());
  return UniqueFd(::openat(own_proc(), path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Unlike the stream buffer's iterators, this does not throw if the kernel returns ESRCH.
  text << file.rdbuf();
  return text ? text.str() : "";
}

std::vector<pid_t> namespace_pids(const std::string& task) {
  std::istringstream fields(status_field(task, "NSpid"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; fields >> pid;) pids.push_back(pid);
  return pids;
}

std::optional<Stat> read_stat(const std::string& task) {
  const std::string text = read_text("/proc/" + task + "/stat");
  // The second field, the name in parentheses, may hold spaces and parentheses itself.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  Stat stat;
  std::string skipped;
  const auto skip = [&](int count) {
    while (count-- > 0) fields >> skipped;
  };
  fields >> stat.state >> stat.parent;  // 3 and 4
  skip(2);
  fields >> stat.terminal >> skipped >> stat.flags;  // 7 to 9
  skip(4);
  std::uint64_t user = 0;
  std::uint64_t kernel = 0;
  fields >> user >> kernel;  // 14 and 15
  stat.cpu_ticks = user + kernel;
  skip(6);
  fields >> stat.start_time >> skipped >> stat.resident_pages;  // 22 to 24
  if (!fields) return std::nullopt;
  return stat;
}

std::optional<Stat> read_stat(pid_t pid) { return read_stat(std::to_string(pid)); }

std::uint64_t resident_bytes(const Stat& stat) {
  return stat.resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

uid_t owner_of(pid_t pid) {
  return static_cast<uid_t>(
      std::strtoul(status_field(std::to_string(pid), "Uid").c_str(), nullptr, 10));
}

char state(const std::string& task) { return read_stat(task).value_or(Stat()).state; }

bool is_in_vfork(pid_t pid) {
  const auto stat = read_stat(pid);
  return stat && !has_ended(*stat) && ::syscall(SYS_kcmp, pid, stat->parent, KCMP_VM, 0, 0) == 0;
}

bool has_ended(const Stat& stat) {
  return stat.state == 'Z' || stat.state == 'X' || stat.state == '\0';
}

bool has_ended(pid_t pid) { return has_ended(read_stat(pid).value_or(Stat())); }

bool is_exiting(const Stat& stat) { return (stat.flags & kExiting) != 0; }

std::vector<pid_t> threads(pid_t pid) {
  return numbers_in("/proc/" + std::to_string(pid) + "/task");
}

std::vector<DescriptorLink> descriptor_links(pid_t pid) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  std::vector<DescriptorLink> links;
  for (const int number : numbers_in(directory)) {
    std::error_code closed;
    std::string link = fs::read_symlink(directory + "/" + std::to_string(number), closed);
    if (!closed) links.push_back({number, std::move(link)});
  }
  return links;
}

bool uses_kfd(pid_t pid) {
  return std::ranges::any_of(descriptor_links(pid), [](const DescriptorLink& descriptor) {
    return descriptor.link == kComputeDevice;
  });
}

bool has_library(pid_t pid, std::string_view name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(file, line);) {
    const std::size_t slash = line.rfind('/');
    if (slash != line.npos && std::string_view(line).substr(slash + 1).starts_with(name)) {
      return true;
    }
  }
  return false;
}

std::vector<pid_t> processes() { return numbers_in("/proc"); }

std::vector<pid_t> tree(pid_t pid) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t candidate : processes()) {
    children.emplace(read_stat(candidate).value_or(Stat()).parent, candidate);
  }
  std::vector<pid_t> found{pid};
  for (std::size_t at = 0; at < found.size(); ++at) {
    const auto [first, last] = children.equal_range(found[at]);
    for (auto it = first; it != last; ++it) found.push_back(it->second);
  }
  return found;
}

std::vector<pid_t> stopped_tree(pid_t pid) {
  if (::access("/proc/thread-self/children", R_OK) != 0) return tree(pid);
  std::vector<pid_t> found{pid};
  for (std::size_t at = 0; at < found.size(); ++at) {
    const std::string process = "/proc/" + std::to_string(found[at]);
    for (const pid_t tid : threads(found[at])) {
      std::istringstream children(
          read_text(process + "/task/" + std::to_string(tid) + "/children"));
      for (pid_t child = 0; children >> child;) found.push_back(child);
    }
  }
  return found;
}

std::map<pid_t, pid_t> stopped_tree_in_namespace(pid_t pid) {
  std::map<pid_t, pid_t> found;
  for (const pid_t one : stopped_tree(pid)) {
    const std::vector<pid_t> pids = namespace_pids(std::to_string(one));
    if (!pids.empty()) found[pids.back()] = one;
  }
  return found;
}

std::string namespace_link(pid_t pid, const std::string& kind) {
  std::error_code error;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + kind, error);
}

Result<pid_t> find_in_namespace(pid_t init, pid_t inner) {
  const std::string wanted = namespace_link(init, "pid");
  for (const pid_t candidate : processes()) {
    const std::vector<pid_t> pids = namespace_pids(std::to_string(candidate));
    if (pids.size() < 2 || pids.back() != inner) continue;
    if (!wanted.empty() && namespace_link(candidate, "pid") == wanted) return candidate;
  }
  return Error(Code::kNotFound, "no process has number " + std::to_string(inner) +
                                    " in the PID namespace of process " + std::to_string(init));
}

Status wait_until_stopped(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
  for (;;) {
    std::size_t ended = 0;
    std::size_t stopped = 0;
    const std::vector<pid_t> tids = threads(pid);
    for (const pid_t tid : tids) {
      const char now = state(std::to_string(pid) + "/task/" + std::to_string(tid));
      ended += now == 'Z' || now == 'X' || now == '\0';
      stopped += now == 'T' || now == 't';
    }
    // A thread that was killed under a tracer stays a zombie until the tracer reaps it.
    if (ended == tids.size()) {
      return Error(Code::kNotFound, "process " + std::to_string(pid) + " is gone");
    }
    if (ended + stopped == tids.size()) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return Error(Code::kTimeout, "process " + std::to_string(pid) + " does not stop");
    }
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace gcr::procfs

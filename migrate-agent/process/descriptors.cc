#include "migrate-agent/process/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "migrate-agent/process/procfs.h"
#include "migrate-agent/process/sockets.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDeleted = " (deleted)";

struct Descriptor {
  int number = -1;
  std::string link;  ///< "/path", "pipe:[1]", "socket:[2]", "anon_inode:[eventfd]"
  struct stat status {};
  int flags = 0;

  std::string name() const {
    switch (number) {
      case STDIN_FILENO:
        return "standard input";
      case STDOUT_FILENO:
        return "standard output";
      case STDERR_FILENO:
        return "standard error";
      default:
        return "descriptor " + std::to_string(number);
    }
  }
  bool writable() const { return (flags & O_ACCMODE) != O_RDONLY; }
};

/// Octal "flags:" of /proc/PID/fdinfo/N.
int open_flags(const std::string& process, int number) {
  std::ifstream file(process + "/fdinfo/" + std::to_string(number));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags:")) return static_cast<int>(std::stoul(line.substr(6), nullptr, 8));
  }
  return 0;
}

Result<std::vector<Descriptor>> read_descriptors(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::error_code error;
  fs::directory_iterator it(process + "/fd", error);
  if (error) {
    return Error::from_errno(error.value(),
                             "cannot read the descriptors of process " + std::to_string(pid));
  }
  std::vector<Descriptor> descriptors;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    Descriptor one;
    one.number = std::stoi(it->path().filename());
    std::error_code gone;
    one.link = fs::read_symlink(it->path(), gone);
    if (gone || ::stat(it->path().c_str(), &one.status) != 0) continue;  // closed meanwhile
    one.flags = open_flags(process, one.number);
    descriptors.push_back(std::move(one));
  }
  return descriptors;
}

/// Who else holds a pipe or socket: link text -> processes.
class Holders {
 public:
  /// Looks at every process but `pid`.
  explicit Holders(pid_t pid) {
    std::error_code error;
    for (const pid_t other : procfs::processes()) {
      if (other == pid) continue;
      const fs::path directory = "/proc/" + std::to_string(other) + "/fd";
      fs::directory_iterator it(directory, error);
      for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
        std::error_code gone;
        const std::string link = fs::read_symlink(it->path(), gone);
        if (!gone && !link.empty()) holders_.emplace(link, other);
      }
    }
  }

  /// One process that holds it, 0 if none does; agents are passed over if `not_agents`.
  pid_t of(const std::string& link, bool not_agents) const {
    const auto [first, last] = holders_.equal_range(link);
    for (auto it = first; it != last; ++it) {
      if (!not_agents || !is_agent(it->second)) return it->second;
    }
    return 0;
  }

 private:
  /// The agent's end of the door is held by the agents' processes: they run our own program.
  static bool is_agent(pid_t pid) {
    struct stat theirs {};
    struct stat ours {};
    return ::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &theirs) == 0 &&
           ::stat("/proc/self/exe", &ours) == 0 && theirs.st_dev == ours.st_dev &&
           theirs.st_ino == ours.st_ino;
  }

  std::multimap<std::string, pid_t> holders_;
};

std::string holder_text(pid_t holder) {
  return holder == 0 ? "a process outside" : "process " + describe_process(holder);
}

/// All that one look at the descriptors needs.
struct Look {
  pid_t pid;
  Inspection& inspection;
  Holders holders;
  std::set<std::uint64_t> own_sockets;
  std::map<std::uint64_t, std::uint64_t> unix_peers;
  std::set<std::uint64_t> live_tcp;
};

bool is_terminal(const struct stat& status) {
  if (!S_ISCHR(status.st_mode)) return false;
  const unsigned kind = major(status.st_rdev);
  return kind == 4 || kind == 5 || (kind >= 136 && kind <= 143);  // tty, console, pts
}

/// null, zero, full, random, urandom
bool is_plain_memory_device(const struct stat& status) {
  const unsigned number = minor(status.st_rdev);
  return S_ISCHR(status.st_mode) && major(status.st_rdev) == 1 &&
         (number == 3 || number == 5 || (number >= 7 && number <= 9));
}

void look_at_device(const Descriptor& fd, Look& look) {
  if (is_terminal(fd.status)) {
    add_blocker(look.inspection, "terminal",
                fd.name() + " is the terminal " + fd.link + "; redirect it to a file or /dev/null");
    return;
  }
  if (is_plain_memory_device(fd.status) || fd.link.starts_with("/dev/nvidia")) return;
  add_blocker(look.inspection, "device", fd.name() + " is the device " + fd.link);
}

void look_at_pipe(const Descriptor& fd, Look& look) {
  const pid_t holder = look.holders.of(fd.link, false);
  if (holder == 0) return;
  add_blocker(
      look.inspection, "outside-pipe",
      fd.name() + " is a pipe to " + holder_text(holder) + "; redirect it to a file or /dev/null");
}

void look_at_socket(const Descriptor& fd, Look& look) {
  const std::uint64_t inode = fd.status.st_ino;
  if (look.live_tcp.contains(inode)) {
    add_blocker(look.inspection, "tcp-established",
                fd.name() + " is a TCP connection; connections cannot be moved");
  }
  const auto peer = look.unix_peers.find(inode);
  const bool outside = peer != look.unix_peers.end() && !look.own_sockets.contains(peer->second);
  pid_t holder = look.holders.of(fd.link, true);
  if (outside) {
    const pid_t other = look.holders.of("socket:[" + std::to_string(peer->second) + "]", false);
    if (other != 0) holder = other;
  }
  if (outside || holder != 0) {
    add_blocker(look.inspection, "outside-socket",
                fd.name() + " is a socket shared with " + holder_text(holder));
  }
}

void look_at_anonymous(const Descriptor& fd, Look& look) {
  static constexpr std::array<std::string_view, 5> kImmovable = {"[perf_event]", "[userfaultfd]",
                                                                 "bpf", "kvm", "dmabuf"};
  if (fd.link.find("[io_uring]") != std::string::npos) {
    add_blocker(look.inspection, "io-uring", fd.name() + " is an io_uring");
  }
  for (const std::string_view kind : kImmovable) {
    if (fd.link.find(kind) != std::string::npos) {
      add_blocker(look.inspection, "device", fd.name() + " is " + fd.link);
    }
  }
}

/// The VRAM of a software GPU: files of a tmpfs that was mounted under that name. The driver's
/// checkpoint takes them out of the process, as it does with /dev/nvidia*.
bool is_software_vram(const struct stat& status) {
  const std::string device =
      " " + std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev)) + " ";
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    if (line.find(device) != std::string::npos && line.find(" - tmpfs softgpu ") != line.npos) {
      return true;
    }
  }
  return false;
}

void look_at_deleted(const Descriptor& fd, Look& look) {
  const auto size = static_cast<std::uint64_t>(fd.status.st_size);
  if (fd.link.starts_with("/memfd:") || is_software_vram(fd.status)) return;
  if (fd.status.st_nlink != 0) {
    add_blocker(look.inspection, "deleted-file",
                fd.name() + " is " + fd.link + ", which still exists under another name");
  } else if (size > kDeletedFileLimitBytes) {
    add_blocker(look.inspection, "deleted-file",
                fd.name() + " is " + fd.link + " with " + format_bytes(size) + "; at most " +
                    format_bytes(kDeletedFileLimitBytes) + " of a deleted file can be moved");
  }
}

void look_at_file(const Descriptor& fd, Look& look, std::set<std::string>& listed) {
  if (fd.link.ends_with(kDeleted)) return look_at_deleted(fd, look);
  if (!fd.link.starts_with("/") || fd.link.starts_with("/proc/") || fd.link.starts_with("/sys/")) {
    return;
  }
  if (!listed.insert(fd.link).second) return;
  proto::FileFact& fact = *look.inspection.facts.add_open_files();
  fact.set_path(fd.link);
  const bool size_counts = S_ISREG(fd.status.st_mode) && !fd.writable();
  fact.set_size_bytes(size_counts ? static_cast<std::uint64_t>(fd.status.st_size) : 0);
}

void look_at(const Descriptor& fd, Look& look, std::set<std::string>& listed) {
  switch (fd.status.st_mode & S_IFMT) {
    case S_IFCHR:
    case S_IFBLK:
      return look_at_device(fd, look);
    case S_IFIFO:
      return look_at_pipe(fd, look);
    case S_IFSOCK:
      return look_at_socket(fd, look);
    case S_IFREG:
    case S_IFDIR:
      return look_at_file(fd, look, listed);
    default:
      return look_at_anonymous(fd, look);
  }
}

}  // namespace

void add_blocker(Inspection& inspection, const std::string& id, const std::string& text) {
  proto::Blocker blocker;
  blocker.set_id(id);
  blocker.set_text(text);
  inspection.blockers.push_back(std::move(blocker));
}

std::string describe_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return std::to_string(pid) + " (" + (name.empty() ? "gone" : name) + ")";
}

Status inspect_descriptors(pid_t pid, bool same_network, Inspection& inspection) {
  GCR_ASSIGN(const std::vector<Descriptor> descriptors, read_descriptors(pid));
  Look look{pid, inspection, Holders(pid), {}, {}, {}};
  for (const Descriptor& fd : descriptors) {
    if (S_ISSOCK(fd.status.st_mode)) look.own_sockets.insert(fd.status.st_ino);
  }
  if (same_network) {
    look.live_tcp = live_tcp_sockets(pid);
    auto peers = unix_peers();
    if (peers) {
      look.unix_peers = std::move(*peers);
    } else {
      inspection.warnings.push_back(peers.error().message());
    }
  }
  std::set<std::string> listed;
  for (const Descriptor& fd : descriptors) look_at(fd, look, listed);
  return {};
}

}  // namespace gcr::process

#include "migrate-agent/process/inspect/descriptors.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAnonymous = "anon_inode:";
constexpr long kMessageQueueMagic = 0x19800202;  // MQUEUE_MAGIC of the kernel

struct Descriptor {
  int number = -1;
  std::string path;  ///< the kernel's link to the file itself: "/proc/7/fd/3"
  std::string link;  ///< "/path", "pipe:[1]", "socket:[2]", "anon_inode:[eventfd]"
  struct stat status {};
  std::string mount{};  ///< the kernel's number, of what has a path

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
};

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
    one.number = std::atoi(it->path().filename().c_str());
    one.path = it->path();
    std::error_code gone;
    one.link = fs::read_symlink(one.path, gone);
    if (gone || ::stat(one.path.c_str(), &one.status) != 0) continue;  // closed meanwhile
    if (one.link.starts_with('/')) one.mount = procfs::descriptor_field(pid, one.number, "mnt_id");
    descriptors.push_back(std::move(one));
  }
  return descriptors;
}

std::string holder_text(pid_t holder) {
  return holder == 0 ? "a process outside" : "process " + describe_process(holder);
}

/// Everything that one pass over the descriptors needs.
struct Look {
  pid_t pid;
  const Together* together;  ///< null: only kinds are looked at
  OutsideTcp outside_tcp;
  Inspection& inspection;
  std::map<std::uint64_t, std::uint64_t> unix_peers{};
  std::map<std::uint64_t, InternetSocket> internet{};           ///< by inode
  std::map<InternetSocket::Ends, std::uint64_t> connections{};  ///< their inodes
  procfs::MountTable mounts{};

  void add(findings::Id finding, const Descriptor& fd, const std::string& what) {
    inspection.findings.add(finding, fd.name() + " " + what);
  }
  void add_object(findings::Id finding, const Descriptor& fd, const std::string& what) {
    inspection.findings.add_object(finding, fd.name() + " " + what, fd.link);
  }
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
    return look.add(findings::kTerminal, fd, "is the terminal " + fd.link);
  }
  if (is_plain_memory_device(fd.status) || is_driver_file(fd.link)) return;
  look.add_object(findings::kDevice, fd, "is the device " + fd.link);
}

void look_at_pipe(const Descriptor& fd, Look& look) {
  if (look.together == nullptr || look.together->is_stream(fd.link)) return;
  const pid_t holder = look.together->outsider(fd.link);
  if (holder != 0) look.add(findings::kOutsidePipe, fd, "is a pipe to " + holder_text(holder));
}

/// The kernel's name for the protocol: "TCP", "UNIX-STREAM", "NETLINK", … Empty if it does not
/// tell.
std::string socket_kind(const Descriptor& fd) {
  std::array<char, 64> name{};
  const ssize_t length =
      ::getxattr(fd.path.c_str(), "system.sockprotoname", name.data(), name.size() - 1);
  return length > 0 ? name.data() : "";
}

bool can_be_dumped(const std::string& socket_kind) {
  static constexpr std::array<std::string_view, 14> kMovable = {
      "",    "TCP",   "TCPv6", "UDP",         "UDPv6",   "UDP-Lite", "UDPLITEv6",
      "RAW", "RAWv6", "UNIX",  "UNIX-STREAM", "NETLINK", "PACKET",   "PING"};
  return std::ranges::find(kMovable, socket_kind) != kMovable.end();
}

std::string socket_link(std::uint64_t inode) { return "socket:[" + std::to_string(inode) + "]"; }

proto::BoundSocket& add_socket(const InternetSocket& socket, Look& look) {
  proto::BoundSocket& bound = *look.inspection.facts.add_sockets();
  bound.set_protocol(socket.protocol);
  bound.set_address(socket.address);
  bound.set_port(socket.port);
  return bound;
}

/// What becomes of what cannot move depends on what the operator has asked for.
void add_outside_tcp(const Descriptor& fd, const std::string& what, Look& look) {
  const bool close = look.outside_tcp == OutsideTcp::kClose;
  look.add(close ? findings::kTcpReset : findings::kTcpEstablished, fd, what);
}

/// What works on top of a TCP connection in the kernel, such as "tls"; empty if nothing does.
std::string upper_layer(const Descriptor& fd, pid_t holder) {
  const auto process = procfs::open_pidfd(holder);
  if (!process) return {};
  const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process->get(), fd.number, 0)));
  std::array<char, 16> name{};
  socklen_t length = name.size() - 1;
  const bool told = ::getsockopt(socket.get(), IPPROTO_TCP, TCP_ULP, name.data(), &length) == 0;
  return told ? name.data() : "";
}

void check_upper_layer(const Descriptor& fd, Look& look) {
  const std::string upper = upper_layer(fd, look.pid);
  if (upper.empty()) return;
  look.add(findings::kSocketKind, fd, "is a TCP connection with " + upper + " in the kernel");
}

void look_at_connection(const Descriptor& fd, const InternetSocket& socket, Look& look) {
  const auto other = look.connections.find(socket.other_ends());
  const bool on_this_host = other != look.connections.end();
  const std::uint64_t inode = on_this_host ? other->second : 0;
  if (inode != 0 && look.together->holds(socket_link(inode))) {
    proto::BoundSocket& inside = add_socket(socket, look);
    inside.set_remote_address(socket.remote_address);
    inside.set_remote_port(socket.remote_port);
    return check_upper_layer(fd, look);
  }
  if (look.outside_tcp == OutsideTcp::kKeep && !on_this_host) return check_upper_layer(fd, look);
  std::string whose = "outside of it";
  if (on_this_host && inode == 0) whose = "not accepted yet, or closed";
  if (inode != 0) whose = "in " + holder_text(look.together->outsider(socket_link(inode)));
  add_outside_tcp(fd,
                  fmt::format("is a TCP connection from {} to {}, whose other end is {}",
                              socket.local_name(), socket.remote_name(), whose),
                  look);
}

void look_at_listener(const Descriptor& fd, const InternetSocket& socket, Look& look) {
  add_socket(socket, look);
  // Those that are kept are waited for, when the job is stopped.
  if (socket.waiting == 0 || look.outside_tcp == OutsideTcp::kKeep) return;
  add_outside_tcp(fd,
                  fmt::format("listens on {}, and connections wait there to be accepted: {}",
                              socket.local_name(), socket.waiting),
                  look);
}

void look_at_socket(const Descriptor& fd, Look& look) {
  const std::uint64_t inode = fd.status.st_ino;
  const std::string kind = socket_kind(fd);
  if (!can_be_dumped(kind)) look.add(findings::kSocketKind, fd, "is a socket of the kind " + kind);
  if (look.together == nullptr) return;
  const auto internet = look.internet.find(inode);
  if (internet != look.internet.end() && internet->second.connection) {
    look_at_connection(fd, internet->second, look);
  } else if (internet != look.internet.end()) {
    look_at_listener(fd, internet->second, look);
  }
  const auto peer = look.unix_peers.find(inode);
  const std::string other_end = peer == look.unix_peers.end() ? "" : socket_link(peer->second);
  const bool outside = !other_end.empty() && !look.together->holds(other_end);
  pid_t holder = look.together->outsider(fd.link, Together::Agents::kSkipped);
  if (outside) {
    const pid_t other = look.together->outsider(other_end);
    if (other != 0) holder = other;
  }
  if (outside || holder != 0) {
    look.add(findings::kOutsideSocket, fd, "is a socket shared with " + holder_text(holder));
  }
}

/// The process that a pidfd stands for, as the reader sees it; -1 if it is gone.
pid_t pid_of_pidfd(const Descriptor& fd, pid_t holder) {
  const std::string pid = procfs::descriptor_field(holder, fd.number, "Pid");
  return pid.empty() ? -1 : std::atoi(pid.c_str());
}

/// CRIU 4.1's list, tested one by one.
bool can_be_dumped(const Descriptor& fd, pid_t holder) {
  static constexpr std::array<std::string_view, 6> kMovable = {
      "[eventfd]", "[eventpoll]", "[signalfd]", "[timerfd]", "inotify", "[fanotify]"};
  const std::string_view kind = std::string_view(fd.link).substr(kAnonymous.size());
  if (kind == "[pidfd]") return pid_of_pidfd(fd, holder) == holder;
  return std::ranges::find(kMovable, kind) != kMovable.end();
}

void look_at_anonymous(const Descriptor& fd, Look& look) {
  if (fd.link == "anon_inode:[io_uring]") {
    look.add(findings::kIoUring, fd, "is an io_uring");
  } else if (!can_be_dumped(fd, look.pid)) {
    look.add_object(findings::kKernelObject, fd, "is " + fd.link);
  }
}

/// Its magic number; 0 if it cannot be told.
long file_system_of(const Descriptor& fd) {
  struct statfs system {};
  return ::statfs(fd.path.c_str(), &system) == 0 ? system.f_type : 0;
}

void look_at_deleted(const Descriptor& fd, Look& look) {
  const auto size = static_cast<std::uint64_t>(fd.status.st_blocks) * 512;  // as CRIU computes it
  if (fd.link.starts_with("/memfd:") || is_driver_file(fd.link)) return;
  if (fd.status.st_nlink != 0) {
    if (file_system_of(fd) == TMPFS_MAGIC) return;  // migrate-agent/process/memory_files
    look.add(findings::kDeletedFile, fd,
             "is " + fd.link + ", which still exists under another name");
  } else if (size > kDeletedFileLimitBytes) {
    look.add(findings::kDeletedFile, fd,
             fmt::format("is {} with {}; at most {} of a deleted file can be moved", fd.link,
                         format_bytes(size), format_bytes(kDeletedFileLimitBytes)));
  }
}

void look_at_proc(const Descriptor& fd, Look& look) {
  const std::string reason = why_not_by_name(look.pid, fd.number, fd.path);
  if (reason.empty()) return;
  look.add_object(findings::kProcFile, fd, "is " + fd.link + ", a file " + reason);
}

bool is_message_queue(const Descriptor& fd) { return file_system_of(fd) == kMessageQueueMagic; }

void look_at_file(const Descriptor& fd, Look& look) {
  if (fd.link.starts_with("/dmabuf:") || is_message_queue(fd)) {
    return look.add(findings::kKernelObject, fd, "is " + fd.link);
  }
  if (file_system_of(fd) == PROC_SUPER_MAGIC) return look_at_proc(fd, look);
  if (fd.link.ends_with(kDeleted)) look_at_deleted(fd, look);
}

/// CRIU finds a file by its mount among those of the process.
void look_at_mount(const Descriptor& fd, Look& look) {
  const bool has_name = fd.link.starts_with("/") && !fd.link.starts_with("/memfd:") &&
                        !fd.link.ends_with(kDeleted) && !fd.link.starts_with("/dmabuf:");
  if (!has_name || fd.mount.empty() ||
      look.mounts.contains(std::strtoull(fd.mount.c_str(), nullptr, 10))) {
    return;
  }
  if (is_terminal(fd.status) || is_message_queue(fd)) return;  // blockers of their own
  if (is_driver_file(fd.link)) return;
  look.add(findings::kForeignMount, fd, "is " + fd.link + " on a mount of another mount namespace");
}

void look_at(const Descriptor& fd, Look& look) {
  look_at_mount(fd, look);
  if (fd.link.starts_with(kAnonymous)) return look_at_anonymous(fd, look);
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
      return look_at_file(fd, look);
    default:
      return;
  }
}

}  // namespace

std::string describe_process(pid_t pid) {
  const std::string text = procfs::read_text("/proc/" + std::to_string(pid) + "/comm");
  const std::string name = text.substr(0, text.find('\n'));
  return std::to_string(pid) + " (" + (name.empty() ? "gone" : name) + ")";
}

Status inspect_descriptors(pid_t pid, const Together* together, bool same_network,
                           OutsideTcp outside_tcp, Inspection& inspection) {
  GCR_ASSIGN(const std::vector<Descriptor> descriptors, read_descriptors(pid));
  Look look{pid, together, outside_tcp, inspection};
  const bool has_sockets = std::ranges::any_of(
      descriptors, [](const Descriptor& fd) { return S_ISSOCK(fd.status.st_mode); });
  // The kernel looks through the table of all connections for it.
  if (together != nullptr && has_sockets && same_network) {
    for (InternetSocket& socket : internet_sockets(pid)) {
      if (socket.connection) look.connections.emplace(socket.ends(), socket.inode);
      look.internet.emplace(socket.inode, std::move(socket));
    }
    const Status found = together->in_place([&]() -> Status {
      GCR_ASSIGN(look.unix_peers, unix_peers());
      return {};
    });
    if (!found) inspection.findings.add(findings::kCannotInspect, found.error().message());
  }
  look.mounts = procfs::mounts_of(pid);
  for (const Descriptor& fd : descriptors) look_at(fd, look);
  return {};
}

}  // namespace gcr::process

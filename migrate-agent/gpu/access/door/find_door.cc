// Finding the door of a process in its descriptor table.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/file_lock.h"

namespace gcr::gpu {
namespace {

Error no_such_process(pid_t pid) {
  return Error(Code::kNotFound, fmt::format("there is no process {}", pid));
}

Error from_proc(int errno_value, pid_t pid, const char* doing) {
  if (errno_value == ENOENT || errno_value == ESRCH) return no_such_process(pid);
  return Error::from_errno(errno_value, fmt::format("cannot {} of process {}", doing, pid));
}

/// Paths under /proc of the descriptors that are named like a card. There may be several: a child
/// that was made by clone(2) directly inherits its parent's.
Result<std::vector<std::string>> card_paths(pid_t pid) {
  const std::string directory = fmt::format("/proc/{}/fd", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory.c_str()), ::closedir);
  if (!entries) return from_proc(errno, pid, "list the descriptors");
  const std::string wanted = fmt::format("/memfd:{} (deleted)", door::kMemfdName);
  std::vector<std::string> paths;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string path = directory + "/" + entry->d_name;
    char target[64];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
    if (length > 0 && std::string_view(target, length) == wanted) paths.push_back(path);
  }
  return paths;
}

/// The PID that the process has in its own PID namespace; 0 if it is gone.
pid_t own_pid(pid_t pid) {
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(pid));
  return pids.empty() ? 0 : pids.back();
}

Error no_door(pid_t pid) {
  if (procfs::has_library(pid, "libgcr-preload.so")) {
    return Error(
        Code::kNotFound,
        fmt::format("process {} runs under the preload library, but has initialised neither "
                    "CUDA nor HIP: there is no GPU state to move yet",
                    pid));
  }
  return Error(Code::kNotFound,
               fmt::format("process {} does not run under the preload library: start it with "
                           "gcr-migrate run",
                           pid));
}

struct Card {
  UniqueFd file;
  door::DoorCard content;
};

/// Whether it is on the kernel's internal file system where all memfds are. The link text alone
/// proves nothing: any file may have that name.
bool is_memfd(const UniqueFd& held) {
  const UniqueFd genuine(::memfd_create("gcr-none", MFD_CLOEXEC));
  struct stat ours {};
  struct statx theirs {};
  return genuine && ::fstat(genuine.get(), &ours) == 0 &&
         ::statx(held.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &theirs) == 0 &&
         ours.st_dev == makedev(theirs.stx_dev_major, theirs.stx_dev_minor);
}

/// The card behind `path`, or nothing if it is not one.
std::optional<Card> read_card(const std::string& path) {
  const UniqueFd held = procfs::hold(path);
  if (!held || !is_memfd(held)) return std::nullopt;
  Card card{procfs::open_regular(held), {}};
  if (!card.file) return std::nullopt;
  const int seals = ::fcntl(card.file.get(), F_GET_SEALS);
  const ssize_t length = ::pread(card.file.get(), &card.content, sizeof(card.content), 0);
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0 || length != sizeof(card.content) ||
      card.content.magic != door::kMagic) {
    return std::nullopt;
  }
  return card;
}

Result<Card> find_card(pid_t pid) {
  GCR_ASSIGN(const auto paths, card_paths(pid));
  const pid_t owner = own_pid(pid);
  if (owner == 0) return no_such_process(pid);
  for (const std::string& path : paths) {
    std::optional<Card> card = read_card(path);
    if (!card || card->content.pid != owner) continue;
    if (card->content.version != door::kVersion) {
      return Error(Code::kUnsupported,
                   fmt::format("the preload library in process {} speaks version {} of the door's "
                               "protocol, this agent version {}: restart the process with this "
                               "agent's library",
                               pid, card->content.version, door::kVersion));
    }
    return std::move(*card);
  }
  return no_door(pid);
}

/// A query of the host releases the door within milliseconds.
Status keep_others_away(const Card& card, pid_t pid, std::chrono::milliseconds patience) {
  const Status alone = lock_file(card.file.get(), "the door", patience);
  if (alone || alone.error().code() != Code::kTimeout) return alone;
  return Error(Code::kUnavailable,
               fmt::format("another agent is moving process {} right now", pid));
}

bool is_packet_socket(int fd) {
  int domain = 0, type = 0;
  socklen_t length = sizeof(int);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  length = sizeof(int);
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) return false;
  return domain == AF_UNIX && type == SOCK_SEQPACKET;
}

}  // namespace

bool has_door(pid_t pid) {
  const auto paths = card_paths(pid);
  if (!paths || paths->empty()) return false;
  const pid_t owner = own_pid(pid);
  return owner != 0 && std::ranges::any_of(*paths, [&](const std::string& path) {
           const std::optional<Card> card = read_card(path);
           return card && card->content.pid == owner;
         });
}

Result<FoundDoor> find_door(pid_t pid, std::chrono::milliseconds patience) {
  if (pid <= 0) return no_such_process(pid);
  FoundDoor found;
  found.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!found.process) return from_proc(errno == EINVAL ? ESRCH : errno, pid, "get hold");
  GCR_ASSIGN(Card card, find_card(pid));
  GCR_TRY(keep_others_away(card, pid, patience));
  found.socket.reset(
      static_cast<int>(::syscall(SYS_pidfd_getfd, found.process.get(), card.content.agent_fd, 0)));
  if (!found.socket) return from_proc(errno, pid, "take the door's descriptor");
  if (!is_packet_socket(found.socket.get())) {
    return Error(Code::kProtocol,
                 fmt::format("the door of process {} is gone: descriptor {} is something else now",
                             pid, card.content.agent_fd));
  }
  found.card = std::move(card.file);
  return found;
}

}  // namespace gcr::gpu

#include "migrate-agent/criu/sockets/open_sockets.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::criu {
namespace {

/// Visits those whose names in /proc are not among `known`, and adds these.
Status visit_sockets_of(pid_t pid, std::set<std::string>& known, const VisitSocket& visit) {
  const auto process = procfs::open_pidfd(pid);
  if (!process && process.error().code() == Code::kNotFound) return {};
  GCR_TRY(process);
  for (const auto& [number, link] : procfs::descriptor_links(pid)) {
    if (!link.starts_with("socket:") || !known.insert(link).second) continue;
    UniqueFd copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process->get(), number, 0)));
    if (!copy && errno != EBADF && errno != ESRCH) {
      return Error::from_errno(errno, "cannot reach a socket of process " + std::to_string(pid));
    }
    if (copy) GCR_TRY(visit({pid, number, std::move(copy)}));
  }
  return {};
}

}  // namespace

Status visit_sockets(const std::vector<pid_t>& pids, const VisitSocket& visit) {
  std::set<std::string> known;
  for (const pid_t pid : pids) GCR_TRY(visit_sockets_of(pid, known, visit));
  return {};
}

std::optional<int> option_of(const UniqueFd& socket, int level, int option) {
  int value = 0;
  socklen_t length = sizeof(value);
  if (::getsockopt(socket.get(), level, option, &value, &length) != 0) return std::nullopt;
  return value;
}

}  // namespace gcr::criu

// Sockets that processes have open, reached through copies of their descriptors.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

struct OpenSocket {
  pid_t pid;
  int number;  ///< of its descriptor in the process
  UniqueFd copy;
};
using VisitSocket = std::function<Status(OpenSocket)>;

/// Visits each socket of the processes once, under the first descriptor that has it. One copy is
/// open at a time: all may be too many. Processes that are gone have none.
Status visit_sockets(const std::vector<pid_t>& pids, const VisitSocket& visit);

/// The option of a socket as an int; nothing if the socket has no such option.
std::optional<int> option_of(const UniqueFd& socket, int level, int option);

}  // namespace gcr::criu

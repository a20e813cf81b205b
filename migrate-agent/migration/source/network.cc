// The network of a job whose addresses move, when the job has been stopped.
#include "migrate-agent/migration/finish/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/process/inspect/sockets.h"

namespace gcr::migration::source {
namespace {

/// CRIU dumps sockets that processes have. Connections that a listener has not handed out yet, and
/// those that were closed with something left to send, are the kernel's alone.
Status check_nothing_passes() {
  for (const process::InternetSocket& socket : process::internet_sockets()) {
    if (socket.waiting != 0) {
      return Error(Code::kUnavailable,
                   fmt::format("{} connections wait at {} to be accepted; try again",
                               socket.waiting, socket.local_name()));
    }
    if (!socket.passing) continue;
    return Error(Code::kUnavailable,
                 fmt::format("a connection from {} to {} is being made or ended; try again",
                             socket.remote_name(), socket.local_name()));
  }
  return {};
}

}  // namespace

Status take_network_down(const Run& run) {
  GCR_TRY(finish::in_network(run.began, [&]() -> Status {
    GCR_TRY(network::take_down(run.began.network()));
    const Status settled = check_nothing_passes();
    if (!settled) GCR_TRY(network::bring_up(run.began.network()));
    return settled;
  }));
  return fault::point("source.network.down");
}

}  // namespace gcr::migration::source

#include "migrate-agent/migration/finish/network.h"

#include <chrono>
#include <thread>
#include <vector>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/sockets/tcp_sockets.h"
#include "migrate-agent/linux/network/announce.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "migrate-agent/linux/procfs/container.h"
#include "src/base/log.h"

namespace gcr::finish {
namespace {

constexpr std::chrono::milliseconds kAnnouncements[] = {
    std::chrono::milliseconds(100), std::chrono::milliseconds(200), std::chrono::milliseconds(700)};

void log_failure(const char* what, const Status& done) {
  if (!done) spdlog::error("cannot {}: {}", what, done.error().message());
}

Status bring_up(const journal::Began& began) {
  return in_network(began, [&]() -> Status {
    GCR_TRY(network::bring_up(began.network()));
    return network::announce(began.network());
  });
}

}  // namespace

Status in_network(const journal::Began& began, const std::function<Status()>& work) {
  if (!began.has_network()) return {};
  const journal::ProcessId& init = began.container().init();
  auto process = procfs::Process::open(init.pid(), init.start_time());
  if (!process) return process.error().code() == Code::kNotFound ? Status() : process.error();
  const procfs::Container container(std::move(*process));
  const Status done = container.inside(work);
  return container.init().has_ended() ? Status() : done;
}

Status receive_network(const journal::Began& began) {
  GCR_TRY(in_network(began, [&] { return network::take_over(began.network()); }));
  return began.has_network() ? fault::point("destination.network.taken") : Status();
}

Status enter_network(const journal::Began& began, const journal::Restored& copy) {
  if (!began.has_network()) return {};
  log_failure("bring up the container's network", bring_up(began));
  std::vector<pid_t> pids;
  for (const journal::ProcessId& member : copy.members()) pids.push_back(member.pid());
  log_failure("make connections send at once", criu::send_at_once(pids));
  return fault::point("destination.network.up");
}

void announce_again(const journal::Began& began) {
  if (!began.has_network()) return;
  for (const auto pause : kAnnouncements) {
    std::this_thread::sleep_for(pause);
    log_failure("announce the container's addresses again",
                in_network(began, [&] { return network::announce(began.network()); }));
  }
}

void reenter_network(const journal::Began& began) {
  if (began.has_network()) log_failure("bring up the container's network", bring_up(began));
}

}  // namespace gcr::finish

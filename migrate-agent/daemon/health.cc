#include "migrate-agent/daemon/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <csignal>

#include "migrate-agent/worker/packet.h"
#include "proto/registry.pb.h"
#include "src/control/deadline.h"

namespace gcr::agent {

asio::awaitable<std::vector<std::string>> Health::problems() {
  while (probing_) {
    std::error_code woken;
    done_.expires_at(asio::steady_timer::time_point::max());
    co_await done_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  if (known_at_ && Clock::now() < *known_at_ + kGoodFor) co_return problems_;
  probing_ = true;
  problems_ = co_await probe();
  known_at_ = Clock::now();
  probing_ = false;
  done_.cancel();
  co_return problems_;
}

asio::awaitable<std::vector<std::string>> Health::probe() {
  auto process = launch_();
  if (!process) co_return std::vector<std::string>(1, process.error().message());
  const pid_t pid = process->pid;
  probes_.push_back(pid);
  asio::posix::stream_descriptor socket(io_, process->socket.release());
  const control::Deadline deadline(io_.get_executor(), kProbePatience, [this, pid, &socket] {
    if (std::ranges::find(probes_, pid) != probes_.end()) ::kill(pid, SIGKILL);
    std::error_code ignored;
    socket.cancel(ignored);
  });
  std::vector<std::string> found;
  for (;;) {
    std::error_code error;
    co_await socket.async_wait(asio::posix::stream_descriptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      found.push_back(fmt::format("the checks did not end within {} s", kProbePatience.count()));
      co_return found;
    }
    const auto packet = receive_packet(socket.native_handle());
    if (packet && !*packet) continue;
    registry::FromWorker message;
    if (packet && message.ParseFromString((*packet)->bytes) && message.has_readiness()) {
      found.assign(message.readiness().problems().begin(), message.readiness().problems().end());
    } else {
      found.push_back("the checks ended without an answer");
    }
    co_return found;
  }
}

bool Health::process_ended(pid_t pid) { return std::erase(probes_, pid) != 0; }

}  // namespace gcr::agent

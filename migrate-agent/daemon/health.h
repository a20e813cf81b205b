// Readiness, for /healthz. A probe, a process of its own like a worker, checks the host: this may
// take long, and a driver that fails to load affects only the probe. Its answer is reused for some
// seconds, and shared by all queries in that time. Belongs to the daemon's thread.
#pragma once

#include <sys/types.h>

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/daemon/worker_process.h"
#include "src/base/result.h"

namespace gcr::agent {

class Health {
 public:
  using Launch = std::function<Result<WorkerProcess>()>;

  static constexpr std::chrono::seconds kGoodFor{5};
  static constexpr std::chrono::seconds kProbePatience{8};

  /// `launch` starts a probe: a process that sends one registry::Readiness and ends.
  Health(asio::io_context& io, Launch launch) : io_(io), launch_(std::move(launch)), done_(io) {}

  /// What prevents this host from taking part in a migration; empty: it is ready. Takes at most
  /// kProbePatience. The object must outlive the call.
  asio::awaitable<std::vector<std::string>> problems();

  /// For the reaper of children: true if it was a probe.
  bool process_ended(pid_t pid);

 private:
  using Clock = std::chrono::steady_clock;

  asio::awaitable<std::vector<std::string>> probe();

  asio::io_context& io_;
  Launch launch_;
  asio::steady_timer done_;  ///< never expires; cancelled when a probe's answer is there
  bool probing_ = false;
  std::vector<pid_t> probes_;  ///< not reaped yet
  std::optional<Clock::time_point> known_at_;
  std::vector<std::string> problems_;
};

}  // namespace gcr::agent

// Serves the daemon's /metrics and /healthz. Belongs to the daemon's thread.
#pragma once

#include <sys/types.h>

#include <asio/awaitable.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/daemon/listener/worker_process.h"
#include "migrate-agent/daemon/metrics/http_server.h"
#include "migrate-agent/daemon/metrics/metrics.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::daemon {

class Monitoring {
 public:
  using Launch = std::function<Result<WorkerProcess>()>;

  static constexpr std::chrono::seconds kGoodFor{5};
  static constexpr std::chrono::seconds kProbePatience{8};

  /// `launch` starts a probe: a process like a worker that sends one registry::Readiness and ends.
  /// It is a process of its own because its checks may take long and a driver may fail to load. A
  /// result is valid for kGoodFor and shared by all requests in that time. `present` is called for
  /// each request of /metrics.
  Monitoring(asio::io_context& io, Launch launch, std::function<Present()> present)
      : io_(io), launch_(std::move(launch)), turn_(io, 1), present_(std::move(present)) {}

  Metrics& metrics() { return metrics_; }

  /// Listens and answers requests; the object must outlive the io_context's last run.
  Status serve(const control::Endpoint& endpoint);

  /// Reports the agent as not ready from now on, because it is stopping.
  void stop() { stopping_ = true; }

  /// Called by the reaper of children; returns true if `pid` was a probe.
  bool process_ended(pid_t pid) { return std::erase(probes_, pid) != 0; }

 private:
  using Clock = std::chrono::steady_clock;

  asio::awaitable<HttpAnswer> answer(std::string path);
  asio::awaitable<HttpAnswer> answer_health();
  asio::awaitable<std::vector<std::string>> probe();

  asio::io_context& io_;
  Metrics metrics_;
  Launch launch_;
  asio::experimental::channel<void()> turn_;  ///< full while a request probes
  std::vector<pid_t> probes_;                 ///< not reaped yet
  std::optional<Clock::time_point> known_at_;
  std::vector<std::string> problems_;  ///< found by the last probe; empty: this host is ready
  std::function<Present()> present_;
  bool stopping_ = false;
};

}  // namespace gcr::daemon

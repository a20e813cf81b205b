// The daemon's /metrics and /healthz. Belongs to the daemon's thread.
#pragma once

#include <sys/types.h>

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "migrate-agent/daemon/health.h"
#include "migrate-agent/metrics/http_server.h"
#include "migrate-agent/metrics/metrics.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

class Monitoring {
 public:
  /// `launch` starts a probe (health.h); `present` is called for each query of metrics.
  Monitoring(asio::io_context& io, Health::Launch launch, std::function<Present()> present)
      : io_(io), health_(io, std::move(launch)), present_(std::move(present)) {}

  Metrics& metrics() { return metrics_; }

  /// Listens, and answers from then on; the object must outlive the io_context's last run.
  Status serve(const control::Endpoint& endpoint);

  /// From now on the agent is not ready, because it is stopping.
  void stop() { stopping_ = true; }

  /// For the reaper of children: true if it was a probe.
  bool process_ended(pid_t pid) { return health_.process_ended(pid); }

 private:
  asio::awaitable<HttpAnswer> answer(std::string path);
  asio::awaitable<HttpAnswer> answer_health();

  asio::io_context& io_;
  Metrics metrics_;
  Health health_;
  std::function<Present()> present_;
  std::optional<HttpServer> http_;
  bool stopping_ = false;
};

}  // namespace gcr::agent

#include "migrate-agent/daemon/listener/monitoring.h"

#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <csignal>

#include "migrate-agent/daemon/listener/listening.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "proto/registry.pb.h"
#include "src/control/deadline.h"

namespace gcr::daemon {
namespace {

/// Formats the body of /healthz: {"ready": …, "problems": […]}
std::string readiness_json(const std::vector<std::string>& problems) {
  google::protobuf::Struct object;
  (*object.mutable_fields())["ready"].set_bool_value(problems.empty());
  auto* list = (*object.mutable_fields())["problems"].mutable_list_value();
  for (const std::string& problem : problems) list->add_values()->set_string_value(problem);
  std::string text;
  const auto written = google::protobuf::util::MessageToJsonString(object, &text);
  return written.ok() ? text + "\n" : "{}\n";
}

}  // namespace

asio::awaitable<std::vector<std::string>> Monitoring::probe() {
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
      found.push_back(
          fmt::format("the checks of this host did not end within {} s", kProbePatience.count()));
      co_return found;
    }
    const auto packet = worker::receive_packet(socket.native_handle());
    if (packet && !*packet) continue;
    registry::FromWorker message;
    if (packet && message.ParseFromString((*packet)->bytes) && message.has_readiness()) {
      found.assign(message.readiness().problems().begin(), message.readiness().problems().end());
    } else {
      found.push_back("the process that checks this host ended without a result");
    }
    co_return found;
  }
}

Status Monitoring::serve(const control::Endpoint& endpoint) {
  asio::ip::tcp::acceptor listening(io_);
  GCR_ASSIGN(const std::string where, listen_on(listening, endpoint));
  serve_http(std::move(listening), [this](std::string path) { return answer(std::move(path)); });
  spdlog::info("metrics and /healthz at {}", where);
  return {};
}

asio::awaitable<HttpAnswer> Monitoring::answer(std::string path) {
  if (path == "/metrics") {
    co_return HttpAnswer{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                         .body = metrics_.text(present_())};
  }
  if (path == "/healthz") co_return co_await answer_health();
  co_return HttpAnswer{.status = 404, .body = "/metrics or /healthz\n"};
}

asio::awaitable<HttpAnswer> Monitoring::answer_health() {
  co_await turn_.async_send(asio::use_awaitable);
  if (!known_at_ || Clock::now() >= *known_at_ + kGoodFor) {
    problems_ = co_await probe();
    known_at_ = Clock::now();
  }
  turn_.try_receive([](auto...) {});
  std::vector<std::string> problems = problems_;
  if (stopping_) problems.emplace_back("this agent is stopping");
  co_return HttpAnswer{.status = problems.empty() ? 200U : 503U,
                       .content_type = "application/json",
                       .body = readiness_json(problems)};
}

}  // namespace gcr::daemon

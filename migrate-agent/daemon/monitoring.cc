#include "migrate-agent/daemon/monitoring.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include "migrate-agent/daemon/connection.h"

namespace gcr::agent {
namespace {

/// {"ready": …, "problems": […]}
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

Status Monitoring::serve(const control::Endpoint& endpoint) {
  asio::ip::tcp::acceptor listening(io_);
  GCR_ASSIGN(const std::string where, listen_on(listening, endpoint));
  http_.emplace(std::move(listening), [this](std::string path) { return answer(std::move(path)); });
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
  std::vector<std::string> problems = co_await health_.problems();
  if (stopping_) problems.emplace_back("this agent is stopping");
  co_return HttpAnswer{.status = problems.empty() ? 200U : 503U,
                       .content_type = "application/json",
                       .body = readiness_json(problems)};
}

}  // namespace gcr::agent

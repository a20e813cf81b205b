#include "tests/cli/fake_agent.h"

namespace gcr::cli::test {

FakeAgent::FakeAgent(std::shared_ptr<asio::ssl::context> tls, Play play)
    : tls_(std::move(tls)), play_(std::move(play)) {
  thread_ = std::thread([this] {
    std::vector<asio::awaitable<void>> one;
    one.push_back(serve());
    loopback_.run(std::move(one));
  });
}

FakeAgent::~FakeAgent() {
  if (thread_.joinable()) thread_.join();
}

asio::awaitable<void> FakeAgent::serve() {
  auto channel = co_await loopback_.accept(tls_);
  if (!channel) co_return;
  const auto request = co_await (*channel)->receive(control::test::kPatience);
  if (!request) co_return;
  request_ = request->migrate_request();
  co_await play_(**channel);
  co_await (*channel)->finish(control::test::kPatience);
}

std::optional<proto::MigrateRequest> FakeAgent::request() {
  thread_.join();
  return request_;
}

}  // namespace gcr::cli::test

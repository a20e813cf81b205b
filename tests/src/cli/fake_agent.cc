#include "tests/src/cli/fake_agent.h"

namespace gcr::cli::test {

FakeAgent::FakeAgent(std::shared_ptr<asio::ssl::context> tls, std::vector<Play> plays)
    : tls_(std::move(tls)), plays_(std::move(plays)) {
  thread_ = std::thread([this] {
    std::vector<asio::awaitable<void>> one;
    one.push_back(serve_all());
    loopback_.run(std::move(one));
  });
}

FakeAgent::~FakeAgent() {
  if (thread_.joinable()) thread_.join();
}

asio::awaitable<void> FakeAgent::serve_all() {
  for (const Play& play : plays_) co_await serve(play);
}

asio::awaitable<void> FakeAgent::serve(const Play& play) {
  auto channel = co_await loopback_.accept(tls_);
  if (!channel) co_return;
  const auto request = co_await (*channel)->receive(control::test::kPatience);
  if (!request) co_return;
  requests_.push_back(*request);
  co_await play(**channel);
  co_await (*channel)->finish(control::test::kPatience);
}

std::vector<proto::Envelope> FakeAgent::requests() {
  if (thread_.joinable()) thread_.join();
  return requests_;
}

std::optional<proto::MigrateRequest> FakeAgent::request() {
  const auto all = requests();
  if (all.empty() || !all.front().has_migrate_request()) return std::nullopt;
  return all.front().migrate_request();
}

}  // namespace gcr::cli::test

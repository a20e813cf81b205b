// An agent that answers one operator with what a test wants it to say.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "tests/control/peers.h"

namespace gcr::cli::test {

/// What the agent does once it has read the request; the channel closes afterwards.
using Play = std::function<asio::awaitable<void>(control::ControlChannel&)>;

/// Serves one connection in a thread of its own, which ends with it.
class FakeAgent {
 public:
  FakeAgent(std::shared_ptr<asio::ssl::context> tls, Play play);
  ~FakeAgent();
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

  std::string address() const { return loopback_.endpoint().to_string(); }

  /// Waits for the end; the request, if one came.
  std::optional<proto::MigrateRequest> request();

 private:
  asio::awaitable<void> serve();

  control::test::Loopback loopback_;
  std::shared_ptr<asio::ssl::context> tls_;
  Play play_;
  std::optional<proto::MigrateRequest> request_;
  std::thread thread_;
};

}  // namespace gcr::cli::test

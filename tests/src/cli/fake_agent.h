// A fake agent that answers one operator as a test configures it.
#pragma once

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/src/control/peers.h"

namespace gcr::cli::test {

/// The agent's action once it has read a connection's request; the channel closes afterwards.
using Play = std::function<asio::awaitable<void>(control::ControlChannel&)>;

/// Serves as many connections as there are plays, one after the other, in its own thread, which
/// ends with the last.
class FakeAgent {
 public:
  FakeAgent(std::shared_ptr<asio::ssl::context> tls, std::vector<Play> plays);
  FakeAgent(std::shared_ptr<asio::ssl::context> tls, Play play)
      : FakeAgent(std::move(tls), std::vector<Play>{std::move(play)}) {}
  ~FakeAgent();
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

  std::string address() const { return loopback_.endpoint().to_string(); }

  /// Waits for the end; returns the received requests.
  std::vector<proto::Envelope> requests();

  /// Waits for the end; returns the first request, if it was for a migration.
  std::optional<proto::MigrateRequest> request();

 private:
  asio::awaitable<void> serve_all();
  asio::awaitable<void> serve(const Play& play);

  control::test::Loopback loopback_;
  std::shared_ptr<asio::ssl::context> tls_;
  std::vector<Play> plays_;
  std::vector<proto::Envelope> requests_;
  std::thread thread_;
};

}  // namespace gcr::cli::test

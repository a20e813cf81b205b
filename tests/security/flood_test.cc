// Unauthenticated clients and one operator flood the agent from many connections; other requests
// are still answered.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/daemon/journals.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

constexpr int kStrangers = 300;
constexpr int kGreedyConnections = 40;

/// A connection from `from`; -1 if the agent does not accept it.
UniqueFd connect_from(const char* from, std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, from, &address.sin_addr);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), raw, sizeof(address)) != 0) throw std::runtime_error("cannot bind");
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), raw, sizeof(address)) != 0) socket.reset();
  return socket;
}

/// Hundreds of connections from one address: some are silent, some begin a preface, some send
/// garbage, some send a preface and then garbage, or nothing, where TLS should begin.
std::vector<UniqueFd> flood(std::uint16_t port) {
  const auto bytes = control::Preface{control::ConnectionKind::kControl, {}}.encode();
  const std::string preface(bytes.begin(), bytes.end());
  const std::array<std::string, 5> openings{"", preface.substr(0, 7), std::string(4096, '\x16'),
                                            preface, preface + std::string(4096, '\x16')};
  std::vector<UniqueFd> held;
  for (int i = 0; i < kStrangers; ++i) {
    UniqueFd socket = connect_from("127.0.0.2", port);
    const std::string& opening = openings.at(static_cast<std::size_t>(i) % openings.size());
    if (!socket) continue;
    ::send(socket.get(), opening.data(), opening.size(), MSG_NOSIGNAL);
    held.push_back(std::move(socket));
  }
  return held;
}

TEST(Flood, OperatorIsServedDuringAFlood) {
  control::test::Credentials credentials;
  AgentProcess agent(credentials,
                     "max_startups = 32\nmax_connections = 16\nstartup_timeout_ms = 60000");
  const auto tls =
      control::make_tls_context(credentials.issue({.role = "operator", .common_name = "greedy"}));
  ASSERT_TRUE(tls);
  const std::vector<UniqueFd> strangers = flood(agent.port());
  EXPECT_TRUE(agent.wait_for_log("too many have not shown a certificate"));

  std::atomic<int> answered = 0;
  std::atomic<int> turned_away = 0;
  std::vector<std::jthread> greedy;
  for (int i = 0; i < 4; ++i) {
    greedy.emplace_back([&](const std::stop_token& stop) {
      std::vector<std::unique_ptr<Client>> held;
      for (int j = 0; j < kGreedyConnections / 4; ++j) {
        try {
          held.push_back(std::make_unique<Client>(agent, *tls));
          if (held.size() > 3) {
            proto::Envelope list;
            list.mutable_list_request()->set_finished(true);
            ++(held.back()->call(list).has_list_reply() ? answered : turned_away);
          }
        } catch (const std::runtime_error&) {
          ++turned_away;
        }
      }
      std::mutex nothing;
      std::unique_lock lock(nothing);
      std::condition_variable_any().wait(lock, stop, [] { return false; });
    });
  }
  const control::TlsFiles honest = credentials.issue({.role = "operator", .common_name = "honest"});
  for (int i = 0; i < 5; ++i) {
    const Finished finished = list_with(honest, agent.endpoint());
    EXPECT_EQ(finished.exit_status, 0) << finished.output;
  }
  while (answered + turned_away == 0) std::this_thread::yield();
  greedy.clear();
  EXPECT_GT(turned_away, 0);

  Client agents(agent, credentials, "agent");
  proto::Envelope outcome;
  const Uuid id = Uuid::random();
  outcome.mutable_outcome_request()->set_migration_id(id.bytes.data(), id.bytes.size());
  EXPECT_TRUE(agents.call(outcome).has_outcome_reply());
}

/// Silent connections from two addresses, each of which fills its half of all slots.
std::vector<UniqueFd> fill_all_slots(AgentProcess& agent, int places) {
  std::vector<UniqueFd> held;
  for (const char* from : {"127.0.0.2", "127.0.0.3"}) {
    for (int i = 0; i <= places / 2; ++i) held.push_back(connect_from(from, agent.port()));
    EXPECT_TRUE(agent.wait_for_log(std::string("from ") + from + ": too many"));
  }
  return held;
}

TEST(Flood, PeerIsServedDuringAFlood) {
  control::test::Credentials credentials;
  AgentProcess agent(credentials, "max_startups = 8\nstartup_timeout_ms = 60000");
  const Uuid id = write_destination(agent.state_dir(), commit::DestinationState::kRunning,
                                    {.peer_name = "agent"});
  const std::vector<UniqueFd> strangers = fill_all_slots(agent, 8);
  proto::Envelope commit;
  commit.mutable_commit_request()->set_migration_id(to_bytes(id));
  for (int i = 0; i < 3; ++i) {
    Client source(agent, credentials, "agent", id);
    EXPECT_EQ(source.call(commit).commit_reply().pid(), kRestoredPid);
  }
  // A client that names a migration unknown to this host counts as unauthenticated.
  EXPECT_THROW(Client(agent, credentials, "agent", Uuid::random()), std::runtime_error);
}

TEST(Flood, EndlessSenderLosesItsConnection) {
  control::test::Credentials credentials;
  AgentProcess agent(credentials);
  Client chatty(agent, credentials, "agent");
  proto::Envelope alive;
  alive.mutable_alive();
  EXPECT_THROW(
      {
        for (unsigned i = 0; i < 100 * control::kMaxMessagesPerSecond; ++i) chatty.send(alive);
      },
      std::runtime_error);
  EXPECT_TRUE(agent.wait_for_log("messages per second"));
}

}  // namespace
}  // namespace gcr::daemon::test

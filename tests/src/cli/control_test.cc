// gcr-migrate SRC DST PID beyond the report: --detach, Ctrl-C, and a lost agent.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using control::test::kPatience;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// Accepts the migration, and closes the connection.
asio::awaitable<void> start_and_vanish(ControlChannel& channel) {
  co_await send_started(channel);
  co_await send_event(channel);
}

/// Accepts the migration and waits for its cancellation.
asio::awaitable<void> start_and_be_cancelled(ControlChannel& channel) {
  co_await start_and_vanish(channel);
  const auto order = co_await channel.receive(kPatience);
  EXPECT_TRUE(order && order->has_cancel_request());
  if (order) {
    EXPECT_EQ(order->cancel_request().migration_id(), example_id_bytes());
  }
}

proto::MigrateReport report_of(Code code) {
  proto::MigrateReport report;
  report.set_migration_id(example_id_bytes());
  report.set_code(std::string(to_string(code)));
  report.set_message("the reason");
  report.set_source_touched(true);
  return report;
}

struct KnownState {
  const char* role = "source";
  const char* state = "working";
  const char* code = "";
  int pid = 0;
};

/// Answers a StatusRequest.
Play status(const KnownState& known) {
  return [known](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    proto::MigrationStatus& status = *message.mutable_status_reply()->add_migrations();
    status.set_migration_id(example_id_bytes());
    status.set_role(known.role);
    status.set_state(known.state);
    status.set_code(known.code);
    status.set_message(*known.code == '\0' ? "" : "what the journal says");
    status.set_pid(known.pid);
    const std::string state = known.state;
    status.set_finished(state == "confirmed" || state == "undone");
    co_await send_message(channel, message);
  };
}

class Control : public Migrate {
 protected:
  Finished against_all(std::vector<Play> plays) {
    FakeAgent agent(credentials_.context({}), std::move(plays));
    Finished finished = run_cli(words(agent.address()));
    requests_ = agent.requests();
    return finished;
  }
  std::unique_ptr<Running> start(const FakeAgent& agent) {
    return std::make_unique<Running>(cli_words(words(agent.address())), cli_environment());
  }

  std::vector<proto::Envelope> requests_;
};

TEST_F(Control, IdIsPrintedFirst) {
  const Finished finished = against([](ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_started(channel);
    co_await send_report(channel, report_of(Code::kTimeout));
  });
  EXPECT_THAT(finished.out, StartsWith(std::string("migration ") + kExampleId + "\n"));
  EXPECT_EQ(finished.exit_status, 1);
}

TEST_F(Control, DetachReturnsOnceTheMigrationIsAccepted) {
  const Finished finished = against(send_started, {"--detach"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_EQ(finished.out, std::string("migration ") + kExampleId + "\n");
  EXPECT_EQ(finished.err, "");
}

TEST_F(Control, DetachHasJsonToo) {
  const Finished finished = against(send_started, {"--detach", "--json"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, StartsWith("{\"schema\":1,\"type\":\"started\","));
  EXPECT_THAT(finished.out, EndsWith(std::string("\"migration_id\":\"") + kExampleId + "\"}\n"));
}

TEST_F(Control, DetachReportsARefusal) {
  const Finished finished = against(fail(Error(Code::kRefused, "not this one")), {"--detach"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_EQ(finished.err, "gcr-migrate: not this one\n");
}

TEST_F(Control, SignalCancelsTheMigration) {
  for (const int signal : {SIGINT, SIGTERM}) {
    FakeAgent agent(credentials_.context({}), [](ControlChannel& channel) -> asio::awaitable<void> {
      co_await start_and_be_cancelled(channel);
      co_await send_report(channel, report_of(Code::kCancelled));
    });
    const auto running = start(agent);
    ASSERT_TRUE(running->wait_for_output("switchover: "));
    running->signal(signal);
    const Finished finished = running->finish();
    EXPECT_EQ(finished.exit_status, 7) << finished.err;
    EXPECT_THAT(finished.err, EndsWith("the reason; the process runs on at the source\n"));
  }
}

TEST_F(Control, SignalAfterTheCommitChangesNothing) {
  FakeAgent agent(credentials_.context({}), [](ControlChannel& channel) -> asio::awaitable<void> {
    co_await start_and_be_cancelled(channel);
    proto::MigrateReport migrated;
    migrated.set_migrated(true);
    migrated.set_destination_pid(77);
    co_await send_report(channel, migrated);
  });
  const auto running = start(agent);
  ASSERT_TRUE(running->wait_for_output("switchover: "));
  running->signal(SIGINT);
  const Finished finished = running->finish();
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("\nmigrated pid=77 "));
}

TEST_F(Control, SecondSignalQuitsAtOnce) {
  FakeAgent agent(credentials_.context({}), [](ControlChannel& channel) -> asio::awaitable<void> {
    co_await start_and_be_cancelled(channel);
    proto::Envelope message;
    message.mutable_event()->set_phase("noted");
    co_await send_message(channel, message);
    const auto left = co_await channel.receive(kPatience);
    EXPECT_FALSE(left);
  });
  const auto running = start(agent);
  ASSERT_TRUE(running->wait_for_output("switchover: "));
  running->signal(SIGINT);
  ASSERT_TRUE(running->wait_for_output("noted: "));
  running->signal(SIGINT);
  const Finished finished = running->finish();
  EXPECT_EQ(finished.exit_status, 6);
  EXPECT_THAT(finished.err, HasSubstr("quit while the agent cancels"));
}

TEST_F(Control, SignalBeforeTheReplyEndsTheCommand) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), where, length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), where, &length), 0);
  const std::string silent = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  Running running(cli_words(words(silent)), cli_environment());
  const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  running.signal(SIGINT);
  EXPECT_EQ(running.finish().exit_status, 7);
}

TEST_F(Control, LostConnectionReportsFailureFromJournal) {
  const Finished finished =
      against_all({start_and_vanish, status({.state = "undone", .code = "io", .pid = 4711})});
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.err, HasSubstr("what the journal says (from the agent's journal"));
  EXPECT_THAT(finished.err, HasSubstr("the process runs on at the source"));
  ASSERT_EQ(requests_.size(), 2U);
  EXPECT_EQ(requests_[1].status_request().migration_id(), example_id_bytes());
}

TEST_F(Control, LostConnectionReportsCancelFromJournal) {
  const Finished finished = against_all(
      {start_and_vanish, status({.state = "undone", .code = "cancelled", .pid = 4711})});
  EXPECT_EQ(finished.exit_status, 7);
}

TEST_F(Control, LostConnectionReportsEndedProcessFromJournal) {
  const Finished finished =
      against_all({start_and_vanish, status({.state = "undone", .code = "not-found"})});
  EXPECT_EQ(finished.exit_status, 9);
  EXPECT_THAT(finished.err, HasSubstr("it runs nowhere"));
}

TEST_F(Control, AgentIsPolledUntilItsJournalIsFinished) {
  const Finished finished =
      against_all({start_and_vanish, status({.state = "working"}), status({.state = "aborted"}),
                   status({.state = "undone", .code = "io", .pid = 4711})});
  EXPECT_EQ(finished.exit_status, 1);
}

TEST_F(Control, LostConnectionGetsPidFromTheDestination) {
  FakeAgent there(credentials_.context({}),
                  status({.role = "destination", .state = "running", .pid = 77}));
  destination_ = there.address();
  const Finished finished = against_all(
      {start_and_vanish, status({.state = "committed"}), status({.state = "confirmed"})});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("known from the agent's journal"));
  EXPECT_THAT(finished.out, EndsWith("\nmigrated pid=77\n"));
}

TEST_F(Control, UnreachableDestinationLeavesPidUnknown) {
  destination_ = control::test::Loopback().endpoint().to_string();
  const Finished finished = against_all({start_and_vanish, status({.state = "confirmed"})});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\nmigrated pid=unknown\n"));
}

TEST_F(Control, OutcomeIsUnknownIfTheAgentHasNoJournal) {
  const Finished finished =
      against_all({start_and_vanish, fail(Error(Code::kNotFound, "no such migration"))});
  EXPECT_EQ(finished.exit_status, 6);
  EXPECT_THAT(finished.err, HasSubstr("not known here"));
}

TEST_F(Control, UnsettledReportIsFollowedUp) {
  const Play unsettled = [](ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_started(channel);
    proto::MigrateReport report = report_of(Code::kInternal);
    report.set_recovering(true);
    co_await send_report(channel, report);
  };
  const Finished finished =
      against_all({unsettled, status({.state = "undone", .code = "io", .pid = 4711})});
  EXPECT_EQ(finished.exit_status, 1);
}

}  // namespace
}  // namespace gcr::cli::test

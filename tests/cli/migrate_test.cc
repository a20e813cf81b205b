// gcr-migrate SRC DST PID against an agent that plays each outcome: exit status, output, report.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/fake_agent.h"
#include "tests/cli/process.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

proto::MigrateReport migrated_report() {
  proto::MigrateReport report;
  report.set_migrated(true);
  report.set_source_touched(true);
  report.set_committed(true);
  report.set_destination_pid(77);
  report.set_vram_bytes(1ULL << 30);
  report.set_buffers(16);
  report.set_sent_vram_bytes(1ULL << 30);
  report.set_downtime_ms(123.44);
  report.set_total_ms(4567.89);
  report.set_verified(true);
  proto::PhaseTime& phase = *report.add_phases();
  phase.set_name("close gate");
  phase.set_host("source");
  report.add_notes("no hugepages: ordinary pages are used");
  return report;
}

proto::MigrateReport failed_report(Code code, bool touched, bool committed = false) {
  proto::MigrateReport report;
  report.set_source_touched(touched);
  report.set_committed(committed);
  report.set_code(std::string(to_string(code)));
  report.set_message("the reason");
  return report;
}

asio::awaitable<void> say_event(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_event()->set_phase("switchover");
  message.mutable_event()->set_text("closing the gate\x1b[2J");
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
}

Play report(const proto::MigrateReport& what) {
  return [what](ControlChannel& channel) -> asio::awaitable<void> {
    co_await say_event(channel);
    proto::Envelope message;
    *message.mutable_migrate_report() = what;
    const Status sent = co_await channel.send(message);
    EXPECT_TRUE(sent);
  };
}

Play fail(const Error& error) {
  return [error](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    *message.mutable_failure() = control::to_failure(error);
    const Status sent = co_await channel.send(message);
    EXPECT_TRUE(sent);
  };
}

class Migrate : public testing::Test {
 protected:
  std::vector<std::string> words(const std::string& source, std::vector<std::string> options = {}) {
    for (std::string word :
         {std::string("--ca"), tls_.authority, std::string("--cert"), tls_.certificate,
          std::string("--key"), tls_.key, source, std::string("node2:99"), std::string("4711")}) {
      options.push_back(std::move(word));
    }
    return options;
  }

  Finished against(const Play& play, std::vector<std::string> options = {}) {
    FakeAgent agent(credentials_.context({}), play);
    Finished finished = run_cli(words(agent.address(), std::move(options)));
    request_ = agent.request();
    return finished;
  }

  control::test::Credentials credentials_;
  control::TlsFiles tls_ = credentials_.issue({.role = "operator", .common_name = "alice"});
  std::optional<proto::MigrateRequest> request_;
};

void expect_one_error(const Finished& finished, int exit_status, const std::string& says) {
  EXPECT_EQ(finished.exit_status, exit_status) << finished.out << finished.err;
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr(says));
  EXPECT_THAT(finished.out, Not(HasSubstr("migrated pid=")));
}

TEST_F(Migrate, SuccessEndsWithTheLineForScripts) {
  const Finished finished = against(report(migrated_report()));
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\nmigrated pid=77 vram_bytes=1073741824 downtime_ms=123.4 "
                                     "total_ms=4567.9 verified=yes\n"));
  EXPECT_THAT(finished.out, HasSubstr("switchover: closing the gate?[2J\n"));
  EXPECT_THAT(finished.out, HasSubstr("note: no hugepages"));
  EXPECT_EQ(finished.err, "");
}

TEST_F(Migrate, RequestSaysWhatTheCommandLineSaid) {
  const Finished finished = against(report(migrated_report()), {"--lanes", "7"});
  EXPECT_EQ(finished.exit_status, 0);
  ASSERT_TRUE(request_);
  EXPECT_EQ(request_->pid(), 4711);
  EXPECT_EQ(request_->destination(), "node2:99");
  EXPECT_EQ(request_->lanes(), 7U);
}

TEST_F(Migrate, JsonIsTheReportAndNothingElse) {
  const Finished finished = against(report(migrated_report()), {"--json"});
  EXPECT_EQ(finished.exit_status, 0);
  proto::MigrateReport read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(finished.out, &read).ok())
      << finished.out;
  EXPECT_EQ(read.SerializeAsString(), migrated_report().SerializeAsString());
  EXPECT_EQ(std::ranges::count(finished.out, '\n'), 1);
}

TEST_F(Migrate, JsonTellsFailuresToo) {
  const Finished finished =
      against(report(failed_report(Code::kResourceExhausted, false)), {"--json"});
  expect_one_error(finished, 3, "the reason");
  EXPECT_THAT(finished.out, HasSubstr("\"code\":\"resource-exhausted\""));
}

TEST_F(Migrate, FailureAfterTheSwitchoverSaysThatTheSourceRunsOn) {
  expect_one_error(against(report(failed_report(Code::kUnavailable, true))), 1,
                   "the reason; the process runs on at the source");
}

TEST_F(Migrate, RefusalBeforeAnythingWasTouched) {
  expect_one_error(against(report(failed_report(Code::kRefused, false))), 3, "the reason\n");
}

TEST_F(Migrate, DestinationThatCannotBeReached) {
  expect_one_error(against(report(failed_report(Code::kUnavailable, false))), 4, "the reason\n");
}

TEST_F(Migrate, ProcessThatMayNotBeMoved) {
  expect_one_error(against(report(failed_report(Code::kPermissionDenied, false))), 5,
                   "the reason\n");
}

TEST_F(Migrate, OutcomeIsUnknownWhereTheCommitIsNotConfirmed) {
  expect_one_error(against(report(failed_report(Code::kTimeout, true, true))), 6, "not known here");
}

TEST_F(Migrate, OutcomeIsUnknownWhereTheAgentVanishes) {
  const Finished finished = against(
      [](ControlChannel& channel) -> asio::awaitable<void> { co_await say_event(channel); });
  expect_one_error(finished, 6, "closed the connection; the outcome is not known here");
}

TEST_F(Migrate, RefusedCertificateIsNotAuthorised) {
  expect_one_error(against(fail(Error(Code::kPermissionDenied, "no operator"))), 5,
                   "no operator\n");
}

TEST_F(Migrate, AgentThatIsNotThere) {
  const std::string nobody = control::test::Loopback().endpoint().to_string();
  expect_one_error(run_cli(words(nobody)), 4,
                   "cannot reach the agent at " + nobody + ": connection refused");
}

TEST_F(Migrate, AgentOfAnotherAuthority) {
  control::test::Credentials strangers;
  FakeAgent agent(strangers.context({}), report(migrated_report()));
  expect_one_error(run_cli(words(agent.address())), 5, "certificates of one authority");
}

TEST_F(Migrate, CertificatesComeFromTheEnvironmentToo) {
  FakeAgent agent(credentials_.context({}), report(migrated_report()));
  const Finished finished = run({GCR_CLI, agent.address(), "node2", "1"},
                                {"GCR_AUTHORITY=" + tls_.authority,
                                 "GCR_CERTIFICATE=" + tls_.certificate, "GCR_KEY=" + tls_.key});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
}

}  // namespace
}  // namespace gcr::cli::test

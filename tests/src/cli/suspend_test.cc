// gcr-migrate suspend, resume and swap, with a fake agent for each reply.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

proto::MigrateReport done(bool resumed) {
  proto::MigrateReport report;
  report.set_migration_id(example_id_bytes());
  report.set_vram_bytes(64ull << 30);
  report.set_buffers(3);
  report.set_total_ms(4000);
  report.mutable_suspension()->set_resumed(resumed);
  report.mutable_suspension()->set_done(true);
  report.mutable_suspension()->set_copy_ms(1250);
  report.mutable_suspension()->set_standstill_ms(1500);
  report.mutable_suspension()->set_hugepages(true);
  return report;
}

proto::MigrateReport failed(bool resumed, Code code, const std::string& message) {
  proto::MigrateReport report = done(resumed);
  report.mutable_suspension()->set_done(false);
  report.set_code(std::string(to_string(code)));
  report.set_message(message);
  return report;
}

class SuspendCommand : public Migrate {
 protected:
  /// `words`: the command and the arguments after the agent.
  Finished order(std::vector<Play> plays, std::vector<std::string> words) {
    FakeAgent agent(credentials_.context({}), std::move(plays));
    words.insert(words.begin() + 1, agent.address());
    for (std::string word : {std::string("--ca"), tls_.authority, std::string("--cert"),
                             tls_.certificate, std::string("--key"), tls_.key}) {
      words.push_back(std::move(word));
    }
    Finished finished = run_cli(words);
    for (const proto::Envelope& request : agent.requests()) {
      const bool suspends = request.has_suspend_request();
      orders_.push_back((suspends ? "suspend " : "resume ") +
                        std::to_string(suspends ? request.suspend_request().pid()
                                                : request.resume_request().pid()));
    }
    return finished;
  }

  std::vector<std::string> orders_;
};

TEST_F(SuspendCommand, PrintsTheRatesAndALastLineForScripts) {
  const Finished finished = order({report(done(false))}, {"suspend", "4711"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("copied at 55.0 GB/s"));
  EXPECT_THAT(finished.out, EndsWith("suspended pid=4711 vram_bytes=68719476736 copy_ms=1250.0 "
                                     "standstill_ms=1500.0 total_ms=4000.0\n"));
  EXPECT_THAT(orders_, ElementsAre("suspend 4711"));
}

TEST_F(SuspendCommand, QuietPrintsOnlyTheLastLine) {
  const Finished finished = order({report(done(true))}, {"resume", "4711", "--quiet"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_EQ(finished.out,
            "resumed pid=4711 vram_bytes=68719476736 copy_ms=1250.0 standstill_ms=1500.0 "
            "total_ms=4000.0\n");
}

TEST_F(SuspendCommand, JsonIsOneObject) {
  const Finished finished = order({report(done(false))}, {"suspend", "4711", "--json"});
  google::protobuf::Struct object;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(finished.out, &object).ok())
      << finished.out;
  const auto& fields = object.fields();
  EXPECT_EQ(fields.at("schema").number_value(), 1);
  EXPECT_EQ(fields.at("exit_status").number_value(), 0);
  EXPECT_EQ(fields.at("migration_id").string_value(), kExampleId);
  const auto& suspension = fields.at("suspension").struct_value().fields();
  EXPECT_EQ(suspension.at("copy_ms").number_value(), 1250);
  EXPECT_TRUE(suspension.at("hugepages").bool_value());
}

TEST_F(SuspendCommand, RefusalHasItsExitStatus) {
  const Finished finished =
      order({report(failed(true, Code::kResourceExhausted, "no room"))}, {"resume", "4711"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_EQ(finished.err, "gcr-migrate: no room\n");
}

TEST_F(SuspendCommand, LostAgentLeavesTheOutcomeUnknown) {
  const Finished finished = order({send_event}, {"suspend", "4711"});
  EXPECT_EQ(finished.exit_status, 6);
  EXPECT_THAT(finished.err, HasSubstr("the outcome is not known here"));
}

TEST_F(SuspendCommand, LostReportIsReplacedByTheJournal) {
  const auto status = [](const char* state, bool finished) -> Play {
    return [=](control::ControlChannel& channel) -> asio::awaitable<void> {
      proto::Envelope message;
      proto::MigrationStatus& known = *message.mutable_status_reply()->add_migrations();
      known.set_migration_id(example_id_bytes());
      known.set_role("source");
      known.set_state(state);
      known.set_pid(4711);
      known.set_finished(finished);
      co_await send_message(channel, message);
    };
  };
  const Play accept = [](control::ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_started(channel);
  };
  const Finished suspended = order({accept, status("suspended", false)}, {"suspend", "4711"});
  EXPECT_EQ(suspended.exit_status, 0) << suspended.err;
  EXPECT_THAT(suspended.out, EndsWith("suspended pid=4711\n"));
  const Finished resumed = order({accept, status("resumed", true)}, {"resume", "4711", "--quiet"});
  EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_EQ(resumed.out, "resumed pid=4711\n");
  const Finished stays = order({accept, status("suspended", false)}, {"resume", "4711"});
  EXPECT_EQ(stays.exit_status, 1);
  EXPECT_THAT(stays.err, HasSubstr("the job stays suspended"));
  const Finished undone = order({accept, status("undone", true)}, {"suspend", "4711"});
  EXPECT_EQ(undone.exit_status, 1);
  EXPECT_THAT(undone.err, EndsWith("; the process runs on\n"));
}

TEST_F(SuspendCommand, SwapSuspendsTheFirstAndResumesTheSecond) {
  const Finished finished =
      order({report(done(false)), report(done(true))}, {"swap", "4711", "4712"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(orders_, ElementsAre("suspend 4711", "resume 4712"));
}

TEST_F(SuspendCommand, FailedResumeInASwapResumesTheFirst) {
  const Finished finished =
      order({report(done(false)), report(failed(true, Code::kResourceExhausted, "no room")),
             report(done(true))},
            {"swap", "4711", "4712"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_THAT(finished.err, HasSubstr("no room"));
  EXPECT_THAT(orders_, ElementsAre("suspend 4711", "resume 4712", "resume 4711"));
}

TEST_F(SuspendCommand, FailedSuspendEndsASwap) {
  const Finished finished = order({report(failed(false, Code::kRefused, "it has managed memory"))},
                                  {"swap", "4711", "4712"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_THAT(orders_, ElementsAre("suspend 4711"));
}

TEST_F(SuspendCommand, WrongOptionsAreUsageErrors) {
  EXPECT_EQ(run_cli({"suspend", "node1"}).exit_status, 2);
  EXPECT_EQ(run_cli({"suspend", "node1", "0"}).exit_status, 2);
  EXPECT_EQ(run_cli({"swap", "node1", "4711"}).exit_status, 2);
  EXPECT_EQ(run_cli({"resume", "node1", "4711", "--device-map", "GPU-1"}).exit_status, 2);
}

}  // namespace
}  // namespace gcr::cli::test

// gcr-migrate checkpoint and restore, with a fake agent for each outcome.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using control::test::kPatience;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kKey = "0123456789abcdef0123456789abcdef";
constexpr const char* kGpuOfTheCheckpoint = "11111111-2222-3333-4444-555555555551";
constexpr const char* kGpuOfTheHost = "11111111-2222-3333-4444-555555555552";

proto::MigrateReport taken_report() {
  proto::MigrateReport report;
  report.set_migration_id(example_id_bytes());
  report.set_migrated(true);
  report.set_source_touched(true);
  report.set_committed(true);
  report.set_checkpoint("2026-11-25T10-00-00.123-4711");
  report.set_processes(2);
  report.set_gpu_processes(1);
  report.set_vram_bytes(1ULL << 30);
  report.set_buffers(16);
  report.set_downtime_ms(123.44);
  report.set_total_ms(4567.89);
  report.set_stored_bytes(3 << 20);
  report.set_shared_bytes(1021ULL << 20);
  report.set_image_mode("stream");
  report.set_switchover_reason("fits");
  add_phase(report, {"close gate", "source", "", 600, 5});
  return report;
}

proto::MigrateReport restored_report() {
  proto::MigrateReport report;
  report.set_migration_id(example_id_bytes());
  report.set_migrated(true);
  report.set_source_touched(true);
  report.set_committed(true);
  report.set_checkpoint("nightly");
  report.set_destination_pid(77);
  report.set_processes(1);
  report.set_vram_bytes(1ULL << 30);
  report.set_buffers(16);
  report.set_total_ms(4567.89);
  report.set_verified(true);
  return report;
}

proto::MigrateReport ended_report() {
  proto::MigrateReport report = failed_report(Code::kNotFound, true);
  report.set_process_ended(true);
  return report;
}

/// Answers a StatusRequest.
Play status(const std::string& role, const std::string& state, int pid) {
  return [=](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    proto::MigrationStatus& known = *message.mutable_status_reply()->add_migrations();
    known.set_migration_id(example_id_bytes());
    known.set_role(role);
    known.set_state(state);
    known.set_pid(pid);
    known.set_finished(true);
    co_await send_message(channel, message);
  };
}

class Checkpoint : public Migrate {
 protected:
  std::vector<std::string> with_certificates(std::vector<std::string> words) const {
    for (const std::string& word : {std::string("--ca"), tls_.authority, std::string("--cert"),
                                    tls_.certificate, std::string("--key"), tls_.key}) {
      words.push_back(word);
    }
    return words;
  }
  std::vector<std::string> checkpoint_words(const std::string& agent,
                                            const std::vector<std::string>& options) const {
    std::vector<std::string> words{"checkpoint", agent, "4711", "/var/checkpoints"};
    words.insert(words.end(), options.begin(), options.end());
    return with_certificates(words);
  }

  Finished run_against(std::vector<std::string> command, std::vector<Play> plays) {
    FakeAgent agent(credentials_.context({}), std::move(plays));
    std::ranges::replace(command, std::string("HOST"), agent.address());
    Finished finished = run_cli(with_certificates(std::move(command)));
    requests_ = agent.requests();
    return finished;
  }
  Finished checkpoint(std::vector<Play> plays, std::vector<std::string> options = {}) {
    std::vector<std::string> words{"checkpoint", "HOST", "4711", "/var/checkpoints"};
    words.insert(words.end(), options.begin(), options.end());
    return run_against(std::move(words), std::move(plays));
  }
  Finished restore(std::vector<Play> plays, std::vector<std::string> options = {}) {
    std::vector<std::string> words{"restore", "HOST", "/var/checkpoints"};
    words.insert(words.end(), options.begin(), options.end());
    return run_against(std::move(words), std::move(plays));
  }

  std::vector<proto::Envelope> requests_;
};

TEST_F(Checkpoint, SuccessEndsWithTheLineForScripts) {
  const Finished finished = checkpoint({report(taken_report())});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out,
              EndsWith("\ncheckpointed name=2026-11-25T10-00-00.123-4711 vram_bytes=1073741824 "
                       "standstill_ms=123.4 total_ms=4567.9 stored_bytes=3145728 "
                       "shared_bytes=1070596096 processes=2\n"));
  EXPECT_THAT(finished.out,
              HasSubstr("in /var/checkpoints: 2026-11-25T10-00-00.123-4711, 2 processes, 1 of "
                        "them with GPUs; 1 GiB of VRAM in 16 buffers; 3 MiB stored, "
                        "1021 MiB were already stored\n"));
  EXPECT_THAT(finished.out, HasSubstr("standstill 123.4 ms"));
  EXPECT_THAT(finished.out, Not(HasSubstr("migrated")));
  EXPECT_THAT(finished.out, Not(HasSubstr("destination")));
}

TEST_F(Checkpoint, RequestHasTheDefaults) {
  checkpoint({report(taken_report())});
  ASSERT_EQ(requests_.size(), 1U);
  const proto::MigrateRequest& request = requests_.front().migrate_request();
  EXPECT_EQ(request.pid(), 4711);
  EXPECT_EQ(request.destination(), "");
  EXPECT_EQ(request.transport(), proto::TRANSPORT_AUTO);
  EXPECT_EQ(request.max_rounds(), 30U);
  EXPECT_EQ(request.checkpoint().directory(), "/var/checkpoints");
  EXPECT_EQ(request.checkpoint().name(), "");
  EXPECT_FALSE(request.checkpoint().stop());
  EXPECT_EQ(request.checkpoint().keep(), 0U);
}

TEST_F(Checkpoint, RequestHasTheOptions) {
  checkpoint({report(taken_report())}, {"--name",
                                        "nightly",
                                        "--stop",
                                        "--keep",
                                        "3",
                                        "--max-bandwidth",
                                        "3GiB",
                                        "--downtime-limit",
                                        "50",
                                        "--max-rounds",
                                        "7",
                                        "--auto-converge",
                                        "--strict",
                                        "--compression",
                                        "zstd",
                                        "--tcp",
                                        "close",
                                        "--allow-slow",
                                        "--pause-before-switchover",
                                        "--max-layer",
                                        "2G"});
  ASSERT_EQ(requests_.size(), 1U);
  const proto::MigrateRequest& request = requests_.front().migrate_request();
  EXPECT_EQ(request.checkpoint().name(), "nightly");
  EXPECT_TRUE(request.checkpoint().stop());
  EXPECT_EQ(request.checkpoint().keep(), 3U);
  EXPECT_EQ(request.max_bandwidth_bytes(), 3ULL << 30);
  EXPECT_EQ(request.max_layer_bytes(), 2ULL << 30);
  EXPECT_EQ(request.downtime_limit_ms(), 50);
  EXPECT_EQ(request.max_rounds(), 7U);
  EXPECT_TRUE(request.auto_converge());
  EXPECT_TRUE(request.strict());
  EXPECT_EQ(request.compression(), proto::COMPRESSION_ZSTD);
  EXPECT_TRUE(request.close_tcp());
  EXPECT_TRUE(request.allow_slow());
  EXPECT_TRUE(request.pause_before_switchover());
}

TEST_F(Checkpoint, QuietPrintsOnlyTheLastLine) {
  const Finished finished = checkpoint({report(taken_report())}, {"--quiet"});
  EXPECT_THAT(finished.out, StartsWith("checkpointed name=2026-11-25T10-00-00.123-4711 "));
  EXPECT_EQ(std::ranges::count(finished.out, '\n'), 1) << finished.out;
}

TEST_F(Checkpoint, JsonReportHasTheCheckpointsFields) {
  const Finished finished = checkpoint({report(taken_report())}, {"--json", "--quiet"});
  EXPECT_THAT(finished.out, StartsWith("{\"schema\":1,\"type\":\"report\","));
  EXPECT_THAT(finished.out, HasSubstr("\"exit_status\":0"));
  EXPECT_THAT(finished.out, HasSubstr("\"checkpoint\":\"2026-11-25T10-00-00.123-4711\""));
  EXPECT_THAT(finished.out, HasSubstr("\"stored_bytes\":\"3145728\""));
  EXPECT_THAT(finished.out, HasSubstr("\"shared_bytes\":\"1070596096\""));
}

TEST_F(Checkpoint, DetachPrintsTheId) {
  const Finished finished = checkpoint({send_started}, {"--detach"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_EQ(finished.out, std::string("checkpoint ") + kExampleId + "\n");
}

TEST_F(Checkpoint, FailureReportsThatTheProcessRunsOn) {
  expect_one_error(checkpoint({report(failed_report(Code::kIo, true))}), 1,
                   "the reason; the process runs on, and there is no new checkpoint\n");
}

TEST_F(Checkpoint, CancellationReportsThatTheProcessRunsOn) {
  expect_one_error(checkpoint({report(failed_report(Code::kCancelled, true))}), 7,
                   "the reason; the process runs on, and there is no new checkpoint\n");
}

TEST_F(Checkpoint, RefusalHasItsExitStatus) {
  expect_one_error(checkpoint({fail(Error(Code::kRefused, "no room"))}), 3, "no room\n");
}

TEST_F(Checkpoint, EndedProcessHasItsExitStatus) {
  expect_one_error(checkpoint({report(ended_report())}), 9,
                   "the reason; there is no new checkpoint\n");
}

TEST_F(Checkpoint, IncompleteCheckpointIsUnconfirmed) {
  proto::MigrateReport what = failed_report(Code::kIo, true);
  what.set_committed(true);
  expect_one_error(checkpoint({report(what)}), 8,
                   "the agent retries until the checkpoint is complete");
}

TEST_F(Checkpoint, LostAgentLeavesTheOutcomeUnknown) {
  expect_one_error(checkpoint({send_event}), 6, "whether there is a new checkpoint is not known");
}

TEST_F(Checkpoint, LostReportIsReplacedByTheJournal) {
  const Finished finished = checkpoint({send_started, status("source", "confirmed", 4711)});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\ncheckpointed name=unknown\n"));
}

TEST_F(Checkpoint, PreflightChecksTheDirectory) {
  const Play ready = [](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    message.mutable_check_reply();
    co_await send_message(channel, message);
  };
  const Finished finished =
      run_against({"preflight", "--checkpoint", "/var/checkpoints", "HOST", "4711"}, {ready});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  ASSERT_EQ(requests_.size(), 1U);
  const proto::MigrateRequest& request = requests_.front().check_request().migrate();
  EXPECT_EQ(request.pid(), 4711);
  EXPECT_EQ(request.destination(), "");
  EXPECT_EQ(request.checkpoint().directory(), "/var/checkpoints");
}

using Series = Checkpoint;

const std::vector<std::string> kAtOnce = {"--every", "1ms", "--quiet"};

TEST_F(Series, EndsWithTheProcess) {
  const Play good = report(taken_report());
  const Finished finished = checkpoint({good, good, good, report(ended_report())}, kAtOnce);
  EXPECT_EQ(finished.exit_status, 9) << finished.err;
  EXPECT_EQ(requests_.size(), 4U);
  EXPECT_EQ(std::ranges::count(finished.out, '\n'), 3) << finished.out;
  for (const proto::Envelope& request : requests_) {
    EXPECT_EQ(request.SerializeAsString(), requests_.front().SerializeAsString());
  }
}

TEST_F(Series, ReusedPidEndsTheSeries) {
  proto::MigrateReport first = taken_report();
  first.set_start_time(4242);
  proto::MigrateReport second = taken_report();
  second.set_start_time(4243);  // an agent that does not compare
  checkpoint({report(first), report(second), report(ended_report())}, kAtOnce);
  ASSERT_EQ(requests_.size(), 3U);
  EXPECT_EQ(requests_[0].migrate_request().start_time(), 0U);
  EXPECT_EQ(requests_[1].migrate_request().start_time(), 4242U);
  EXPECT_EQ(requests_[2].migrate_request().start_time(), 4242U);
}

TEST_F(Series, MissingProcessHasEnded) {
  const Finished finished =
      checkpoint({report(taken_report()), fail(Error(Code::kNotFound, "no process"))}, kAtOnce);
  EXPECT_EQ(finished.exit_status, 9);
  EXPECT_EQ(finished.err, "gcr-migrate: no process; there is no new checkpoint\n");
}

TEST_F(Series, FailureOfTheFirstEndsIt) {
  const Finished finished = checkpoint({fail(Error(Code::kNotFound, "no process"))}, kAtOnce);
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_EQ(finished.err, "gcr-migrate: no process\n");
}

TEST_F(Series, ThreeConsecutiveFailuresEndIt) {
  const Play good = report(taken_report()), bad = report(failed_report(Code::kIo, true));
  const Finished finished = checkpoint({good, bad, bad, good, bad, bad, bad}, kAtOnce);
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_EQ(requests_.size(), 7U);
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 5) << finished.err;
}

TEST_F(Series, SignalBetweenTwoEndsItWithSuccess) {
  FakeAgent agent(credentials_.context({}), report(taken_report()));
  Running running(cli_words(checkpoint_words(agent.address(), {"--every", "2h"})),
                  cli_environment());
  ASSERT_TRUE(running.wait_for_output("the next checkpoint is due in 1 h 59 min\n"));
  running.signal(SIGINT);
  const Finished finished = running.finish();
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_EQ(agent.requests().size(), 1U);
}

TEST_F(Series, SignalCancelsTheRunningOneAndEndsIt) {
  const Play good = [](ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_report(channel, taken_report());
  };
  const Play to_be_cancelled = [](ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_started(channel);
    const auto order = co_await channel.receive(kPatience);
    EXPECT_TRUE(order && order->has_cancel_request());
    co_await send_report(channel, failed_report(Code::kCancelled, true));
  };
  FakeAgent agent(credentials_.context({}), {good, to_be_cancelled});
  Running running(cli_words(checkpoint_words(agent.address(), {"--every", "1ms"})),
                  cli_environment());
  ASSERT_TRUE(running.wait_for_output(std::string("checkpoint ") + kExampleId));
  running.signal(SIGTERM);
  EXPECT_EQ(running.finish().exit_status, 7);
  EXPECT_EQ(agent.requests().size(), 2U);
}

using Restore = Checkpoint;

TEST_F(Restore, SuccessEndsWithTheLineForScripts) {
  const Finished finished = restore({report(restored_report())});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\nrestored pid=77 vram_bytes=1073741824 total_ms=4567.9 "
                                     "verified=yes processes=1\n"));
  EXPECT_THAT(finished.out, HasSubstr(" as 77: nightly, 1 GiB of VRAM in 16 buffers\n"));
}

TEST_F(Restore, RequestNamesTheNewestByDefault) {
  restore({report(restored_report())});
  ASSERT_EQ(requests_.size(), 1U);
  ASSERT_TRUE(requests_.front().has_load_request());
  const proto::LoadRequest& request = requests_.front().load_request();
  EXPECT_EQ(request.directory(), "/var/checkpoints");
  EXPECT_EQ(request.name(), "");
  EXPECT_FALSE(request.copy());
  EXPECT_FALSE(request.no_prefill());
  EXPECT_TRUE(request.device_map().empty());
}

TEST_F(Restore, RequestHasTheOptions) {
  restore({report(restored_report())},
          {"nightly", "--copy", "--no-prefill", "--container", std::string("4711:") + kKey,
           "--device-map", std::string("GPU-") + kGpuOfTheCheckpoint + "=" + kGpuOfTheHost});
  ASSERT_EQ(requests_.size(), 1U);
  const proto::LoadRequest& request = requests_.front().load_request();
  EXPECT_EQ(request.name(), "nightly");
  EXPECT_TRUE(request.copy());
  EXPECT_TRUE(request.no_prefill());
  EXPECT_EQ(request.container().init(), 4711);
  EXPECT_EQ(request.container().key(), kKey);
  ASSERT_EQ(request.device_map_size(), 1);
  EXPECT_EQ(to_uuid(request.device_map(0).source_uuid()).to_string(), kGpuOfTheCheckpoint);
  EXPECT_EQ(to_uuid(request.device_map(0).destination_uuid()).to_string(), kGpuOfTheHost);
}

TEST_F(Restore, DetachPrintsTheId) {
  const Finished finished = restore({send_started}, {"--detach"});
  EXPECT_EQ(finished.out, std::string("restore ") + kExampleId + "\n");
}

TEST_F(Restore, FailureReportsThatNothingWasRestored) {
  expect_one_error(restore({report(failed_report(Code::kIo, true))}), 1,
                   "the reason; nothing was restored\n");
}

TEST_F(Restore, RefusalHasItsExitStatus) {
  expect_one_error(restore({fail(Error(Code::kRefused, "the original runs"))}), 3,
                   "the original runs\n");
}

TEST_F(Restore, LostReportGetsThePidFromTheJournal) {
  const Play running = status("destination", "running", 55);
  const Finished finished = restore({send_started, running, running});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\nrestored pid=55\n"));
}

}  // namespace
}  // namespace gcr::cli::test

// gcr-migrate SRC DST PID with a fake agent for each outcome: exit status, output, report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/src/cli/migrate_fixture.h"

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
  report.set_processes(1);
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

TEST_F(Migrate, SuccessEndsWithTheLineForScripts) {
  const Finished finished = against(report(migrated_report()));
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, EndsWith("\nmigrated pid=77 vram_bytes=1073741824 downtime_ms=123.4 "
                                     "total_ms=4567.9 verified=yes processes=1\n"));
  EXPECT_THAT(finished.out, HasSubstr("switchover: closing the gate?[2J\n"));
  EXPECT_THAT(finished.out, HasSubstr("note: no hugepages"));
  EXPECT_EQ(finished.err, "");
}

TEST_F(Migrate, RequestHasTheOptions) {
  const Finished finished = against(report(migrated_report()), {"--lanes", "7"});
  EXPECT_EQ(finished.exit_status, 0);
  ASSERT_TRUE(request_);
  EXPECT_EQ(request_->pid(), 4711);
  EXPECT_EQ(request_->destination(), "node2:99");
  EXPECT_EQ(request_->lanes(), 7U);
}

TEST_F(Migrate, RequestHasTheDefaults) {
  against(report(migrated_report()));
  ASSERT_TRUE(request_);
  EXPECT_EQ(request_->downtime_limit_ms(), 0) << "not requested";
  EXPECT_FALSE(request_->allow_slow());
  EXPECT_EQ(request_->max_rounds(), 30U);
  EXPECT_EQ(request_->max_bandwidth_bytes(), 0U);
  EXPECT_FALSE(request_->auto_converge());
  EXPECT_FALSE(request_->strict());
  EXPECT_FALSE(request_->no_prefill());
  EXPECT_FALSE(request_->close_tcp());
  EXPECT_EQ(request_->accepted_size(), 0);
  EXPECT_EQ(request_->compression(), proto::COMPRESSION_AUTO);
  EXPECT_EQ(request_->image_mode(), proto::IMAGE_MODE_AUTO);
}

TEST_F(Migrate, RequestHasThePreCopyOptions) {
  against(report(migrated_report()),
          {"--downtime-limit", "50", "--max-rounds", "7", "--max-bandwidth", "3GiB",
           "--auto-converge", "--strict", "--no-prefill", "--compression", "zstd", "--image-mode",
           "rounds", "--tcp", "close", "--allow-slow", "--accept", "landlock,mdwe"});
  ASSERT_TRUE(request_);
  EXPECT_EQ(request_->downtime_limit_ms(), 50);
  EXPECT_EQ(request_->max_rounds(), 7U);
  EXPECT_EQ(request_->max_bandwidth_bytes(), 3ULL << 30);
  EXPECT_TRUE(request_->auto_converge());
  EXPECT_TRUE(request_->strict());
  EXPECT_TRUE(request_->no_prefill());
  EXPECT_TRUE(request_->close_tcp());
  EXPECT_TRUE(request_->allow_slow());
  EXPECT_THAT(request_->accepted(), testing::ElementsAre("landlock", "mdwe"));
  EXPECT_EQ(request_->compression(), proto::COMPRESSION_ZSTD);
  EXPECT_EQ(request_->image_mode(), proto::IMAGE_MODE_ROUNDS);
}

TEST_F(Migrate, RequestHasTheGpuMap) {
  const std::string one = "11111111-2222-3333-4444-555555555551";
  const std::string two = "11111111-2222-3333-4444-555555555552";
  against(report(migrated_report()),
          {"--device-map", "GPU-" + one + "=GPU-" + two + "," + two + "=" + one});
  ASSERT_TRUE(request_);
  ASSERT_EQ(request_->device_map_size(), 2);
  EXPECT_EQ(to_uuid(request_->device_map(0).source_uuid()).to_string(), one);
  EXPECT_EQ(to_uuid(request_->device_map(0).destination_uuid()).to_string(), two);
  EXPECT_EQ(to_uuid(request_->device_map(1).source_uuid()).to_string(), two);
  for (const std::string& wrong : {"GPU-" + one, one + "=", one + "=0", std::string("=")}) {
    const Finished refused = run_cli(words("127.0.0.1:1", {"--device-map", wrong}));
    EXPECT_EQ(refused.exit_status, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("is not two UUIDs of GPUs with = between them")) << wrong;
  }
}

TEST_F(Migrate, ContainerThatWillBeMadeIsForPreflightAlone) {
  const Finished refused = run_cli(words("127.0.0.1:1", {"--container", "new"}));
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_THAT(refused.err, HasSubstr("\"new\" is not PID:KEY"));
}

TEST_F(Migrate, CommandRunsAfterTheCommit) {
  const std::vector<std::string> options{
      "--on-commit", "echo \"$GCR_SRC $GCR_DST $GCR_PID $GCR_MIGRATION\"; (exit 3)"};
  const Finished finished = against(report(migrated_report()), options);
  EXPECT_EQ(finished.exit_status, 0);
  EXPECT_THAT(finished.err, HasSubstr("127.0.0.1 node2 77 "));
  EXPECT_THAT(finished.err,
              HasSubstr("--on-commit command ended with status 3; the process was migrated"));
  EXPECT_THAT(finished.out, Not(HasSubstr("node2 77")));
  EXPECT_THAT(finished.out, HasSubstr("\nmigrated pid=77 "));
  expect_one_error(against(report(failed_report(Code::kInternal, true)), options), 1, "the reason");
}

TEST_F(Migrate, BandwidthHasDecimalAndBinaryUnits) {
  const std::pair<const char*, std::uint64_t> rates[] = {
      {"0", 0}, {"12345", 12345}, {"250M", 250'000'000}, {"4g", 4'000'000'000}, {"8KiB", 8192}};
  for (const auto& [text, bytes] : rates) {
    against(report(migrated_report()), {"--max-bandwidth", text});
    ASSERT_TRUE(request_) << text;
    EXPECT_EQ(request_->max_bandwidth_bytes(), bytes) << text;
  }
}

TEST_F(Migrate, SummaryOrdersThePhasesOfBothSidesByTime) {
  proto::MigrateReport what = migrated_report();
  what.clear_phases();
  add_phase(what, {"criu restore", "destination", "restore", 700, 90});
  add_phase(what, {"final round", "source", "vram", 610, 60});
  add_phase(what, {"switchover", "source", "", 600, 200});
  add_phase(what, {"close gate", "source", "", 600, 5});
  const std::string out = against(report(what)).out;
  std::size_t at = 0;
  for (const char* line : {"600.0        200.0  source       process       switchover\n",
                           "600.0          5.0  source       process       close gate\n",
                           "610.0         60.0  source       vram          final round\n",
                           "700.0         90.0  destination  restore       criu restore\n"}) {
    const std::size_t found = out.find(line, at);
    ASSERT_NE(found, std::string::npos) << line << "in\n" << out;
    at = found;
  }
}

TEST_F(Migrate, SummaryHasRoundsAndTheSwitchoverReason) {
  proto::MigrateReport what = migrated_report();
  add_round(what, 1, 100, 400);
  add_round(what, 2, 500, 120).set_last(true);
  what.set_switchover_reason("not-shrinking");
  what.set_downtime_limit_ms(300);
  what.set_expected_send_ms(98.76);
  what.set_expected_downtime_ms(150.04);
  what.set_image_bytes(256 << 20);
  what.set_sent_image_bytes(32 << 20);
  what.set_image_mode("stream");
  what.set_image_mode_reason("the kernel does not track dirty pages");
  what.set_compression("lz4");
  what.set_clock_offset_ms(-12.5);
  what.set_clock_error_ms(0.25);
  what.set_prefilled(true);
  add_phase(what, {"undone closing", "source", "", 300, 23.44});
  const std::string out = against(report(what)).out;
  EXPECT_THAT(out, HasSubstr("    1        100.0          2.0        400.0       32        4     "
                             "64 MiB   1.50 GB/s      25 %\n"));
  EXPECT_THAT(out, HasSubstr("25 %  gate closed\n"));
  EXPECT_THAT(
      out, HasSubstr(
               "switchover: the rest no longer shrank; limit 300.0 ms, "
               "the last round expected to take 98.8 ms; downtime 123.4 ms "
               "(23.4 ms in closings of the gate that were undone: 1), expected about 150.0 ms\n"));
  EXPECT_THAT(out, HasSubstr("images: 256 MiB as CRIU wrote them, 32 MiB sent, compression lz4; in "
                             "one stream (the kernel does not track dirty pages)\n"));
  EXPECT_THAT(out, HasSubstr("destination: filled before the process was restored\n"));
  EXPECT_THAT(out, HasSubstr("is -12.500 ms from the source's, within 0.250 ms\n"));
}

TEST_F(Migrate, SummaryOmitsWhatTheReportLacks) {
  const std::string out = against(report(migrated_report())).out;
  for (const char* word : {"round", "switchover: what", "images:", "clocks:"}) {
    EXPECT_THAT(out, Not(HasSubstr(word)));
  }
}

TEST_F(Migrate, LateFailureReportsThatTheSourceRunsOn) {
  expect_one_error(against(report(failed_report(Code::kUnavailable, true))), 1,
                   "the reason; the process runs on at the source");
}

TEST_F(Migrate, RefusalHasItsExitStatus) {
  expect_one_error(against(report(failed_report(Code::kRefused, false))), 3, "the reason\n");
}

TEST_F(Migrate, UnreachableDestinationHasItsExitStatus) {
  expect_one_error(against(report(failed_report(Code::kUnavailable, false))), 4, "the reason\n");
}

TEST_F(Migrate, ForbiddenProcessHasItsExitStatus) {
  expect_one_error(against(report(failed_report(Code::kPermissionDenied, false))), 5,
                   "the reason\n");
}

TEST_F(Migrate, UnconfirmedCommitHasItsExitStatus) {
  expect_one_error(against(report(failed_report(Code::kTimeout, true, true))), 8,
                   "will not run at the source again");
}

TEST_F(Migrate, LostAgentLeavesTheOutcomeUnknown) {
  const Finished finished = against(
      [](ControlChannel& channel) -> asio::awaitable<void> { co_await send_event(channel); });
  expect_one_error(finished, 6, "closed the connection; the outcome is not known here");
}

TEST_F(Migrate, RefusedCertificateIsNotAuthorised) {
  expect_one_error(against(fail(Error(Code::kPermissionDenied, "no operator"))), 5,
                   "no operator\n");
}

TEST_F(Migrate, UnreachableAgentHasItsExitStatus) {
  const std::string closed = control::test::Loopback().endpoint().to_string();
  expect_one_error(run_cli(words(closed)), 4,
                   "cannot reach the agent at " + closed + ": connection refused");
}

TEST_F(Migrate, AgentOfAnotherAuthorityIsRefused) {
  control::test::Credentials strangers;
  FakeAgent agent(strangers.context({}), report(migrated_report()));
  expect_one_error(run_cli(words(agent.address())), 5, "certificates of one authority");
}

TEST_F(Migrate, CertificatesMayComeFromTheEnvironment) {
  FakeAgent agent(credentials_.context({}), report(migrated_report()));
  const Finished finished = run({GCR_CLI, agent.address(), "node2", "1"},
                                {"GCR_AUTHORITY=" + tls_.authority,
                                 "GCR_CERTIFICATE=" + tls_.certificate, "GCR_KEY=" + tls_.key});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
}

}  // namespace
}  // namespace gcr::cli::test

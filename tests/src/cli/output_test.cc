// The output of gcr-migrate during a migration: lines for people, lines of JSON, nothing.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using google::protobuf::Struct;
using google::protobuf::util::JsonStringToMessage;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Struct> objects_in(const std::string& out) {
  std::vector<Struct> objects;
  std::size_t start = 0;
  for (auto end = out.find('\n'); end != std::string::npos; end = out.find('\n', start)) {
    Struct object;
    EXPECT_TRUE(JsonStringToMessage(out.substr(start, end - start), &object).ok()) << out;
    objects.push_back(std::move(object));
    start = end + 1;
  }
  EXPECT_EQ(start, out.size()) << "the last line has no end: " << out;
  return objects;
}

std::vector<std::string> types_of(const std::vector<Struct>& objects) {
  std::vector<std::string> types;
  for (const Struct& object : objects) {
    EXPECT_EQ(object.fields().at("schema").number_value(), 1);
    EXPECT_GT(object.fields().at("unix_ms").number_value(), 0);
    types.push_back(object.fields().at("type").string_value());
  }
  return types;
}

proto::MigrateReport the_report() {
  proto::MigrateReport report;
  report.set_migration_id(example_id_bytes());
  report.set_migrated(true);
  report.set_source_touched(true);
  report.set_committed(true);
  report.set_verified(true);
  report.set_destination_pid(77);
  report.set_processes(3);
  report.set_gpu_processes(2);
  report.set_vram_bytes(1ULL << 33);
  report.set_downtime_ms(120.5);
  report.set_total_ms(4000);
  add_phase(report, {"close gate", "source", "process", 600, 5});
  add_round(report, 1, 100, 400);
  return report;
}

/// Started, an event, progress, the report.
asio::awaitable<void> play_all(ControlChannel& channel) {
  co_await send_started(channel);
  co_await send_event(channel);
  co_await send_progress(channel, example_progress());
  co_await send_report(channel, the_report());
}

TEST_F(Migrate, JsonHasALinePerEventAndTheReportLast) {
  const Finished finished = against(play_all, {"--json"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  const auto objects = objects_in(finished.out);
  ASSERT_THAT(types_of(objects), ElementsAre("started", "event", "progress", "report"));
  for (const Struct& object : objects) {
    EXPECT_EQ(object.fields().at("migration_id").string_value(), kExampleId);
  }
  EXPECT_EQ(objects[1].fields().at("phase").string_value(), "switchover");
  EXPECT_EQ(objects[1].fields().at("text").string_value(), "closing the gate?[2J");
  EXPECT_EQ(objects[2].fields().at("round").number_value(), 3);
  EXPECT_EQ(objects[2].fields().at("expected_downtime_ms").number_value(), 420);
  EXPECT_FALSE(objects[2].fields().at("paused").bool_value());
  EXPECT_EQ(objects[3].fields().at("exit_status").number_value(), 0);
}

TEST_F(Migrate, JsonReportIsTheAgentsReport) {
  const std::string out = against(play_all, {"--json", "--quiet"}).out;
  EXPECT_EQ(std::ranges::count(out, '\n'), 1);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  proto::MigrateReport read;
  ASSERT_TRUE(JsonStringToMessage(out, &read, options).ok()) << out;
  proto::MigrateReport expected = the_report();
  expected.clear_migration_id();  // JSON has it as a UUID, which the parser does not read as bytes
  read.clear_migration_id();
  EXPECT_EQ(read.SerializeAsString(), expected.SerializeAsString());
}

TEST_F(Migrate, JsonReportsFailures) {
  proto::MigrateReport failed;
  failed.set_code("resource-exhausted");
  failed.set_message("the reason");
  const Finished finished = against(report(failed), {"--json"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_EQ(finished.err, "gcr-migrate: the reason\n");
  const auto last = objects_in(finished.out).back();
  EXPECT_EQ(last.fields().at("type").string_value(), "report");
  EXPECT_EQ(last.fields().at("exit_status").number_value(), 3);
  EXPECT_EQ(last.fields().at("code").string_value(), "resource-exhausted");
}

TEST_F(Migrate, JsonReportsAnUnreachableAgent) {
  const std::string closed = control::test::Loopback().endpoint().to_string();
  const Finished finished = run_cli(words(closed, {"--json"}));
  EXPECT_EQ(finished.exit_status, 4);
  EXPECT_THAT(types_of(objects_in(finished.out)), ElementsAre("report"));
}

TEST_F(Migrate, QuietPrintsOnlyTheLastLine) {
  const Finished finished = against(play_all, {"--quiet"});
  EXPECT_EQ(finished.out,
            "migrated pid=77 vram_bytes=8589934592 downtime_ms=120.5 total_ms=4000.0 "
            "verified=yes processes=3\n");
  EXPECT_EQ(finished.err, "");
}

TEST_F(Migrate, QuietFailureIsOneErrorLine) {
  const Finished finished = against(fail(Error(Code::kRefused, "not this one")), {"--quiet"});
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(finished.err, "gcr-migrate: not this one\n");
}

TEST_F(Migrate, PlainProgressIsThrottled) {
  const Finished finished = against([](ControlChannel& channel) -> asio::awaitable<void> {
    for (int i = 0; i < 50; ++i) co_await send_progress(channel, example_progress());
    co_await send_report(channel, the_report());
  });
  EXPECT_THAT(finished.out, testing::Not(HasSubstr("dirtied at")));
}

TEST_F(Migrate, InvalidValuesDoNoHarm) {
  const Finished finished = against(
      [](ControlChannel& channel) -> asio::awaitable<void> {
        proto::Progress progress;
        progress.set_phase("\x1b[31mprecopy");
        progress.set_round(4'000'000'000);
        progress.set_round_bytes(1);
        progress.set_remaining_bytes(~0ULL);
        progress.set_rate_bytes_per_s(std::numeric_limits<double>::infinity());
        progress.set_expected_downtime_ms(std::numeric_limits<double>::quiet_NaN());
        progress.set_time_left_ms(-1);
        co_await send_progress(channel, progress);
        co_await send_report(channel, the_report());
      },
      {"--json"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(types_of(objects_in(finished.out)), ElementsAre("progress", "report"));
}

}  // namespace
}  // namespace gcr::cli::test

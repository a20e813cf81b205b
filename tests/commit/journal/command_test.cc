// gcr-migrate journal: its output for people and for scripts.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/commit/journal/support.h"
#include "tests/src/cli/process.h"
#include "tests/support/damage.h"

namespace gcr::journal::test {
namespace {

using cli::test::Finished;
using cli::test::run_cli;
using google::protobuf::Struct;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kTime = "20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-9:]+[.][0-9][0-9][0-9]Z";

class Command : public testing::Test {
 protected:
  std::filesystem::path journal(const std::vector<Record>& records) {
    Journal journal = begin(dir_.path());
    for (const Record& record : records) EXPECT_TRUE(journal.append(record));
    return journal.path();
  }

  static Finished print(const std::filesystem::path& path, std::vector<std::string> options = {}) {
    options.insert(options.begin(), "journal");
    options.push_back(path);
    return run_cli(options);
  }

  static Struct json_of(const std::filesystem::path& path, int status) {
    const Finished finished = print(path, {"--json"});
    EXPECT_EQ(finished.exit_status, status) << finished.err;
    Struct result;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(finished.out, &result).ok())
        << finished.out;
    return result;
  }

  StateDir dir_;
};

TEST_F(Command, PrintsEachRecordWithItsTime) {
  Record restored;
  restored.mutable_restored()->add_members()->set_pid(12);
  restored.mutable_restored()->mutable_init()->set_pid(11);
  Record detaching;
  detaching.mutable_detaching();
  Record resolved;
  resolved.mutable_resolved()->set_run_here(true);
  resolved.mutable_resolved()->set_operator_name("alice");
  const Finished finished_run = print(journal({keeper_started(99), detaching, restored, committed(),
                                               aborted("no\nway"), resolved, finished()}));
  EXPECT_EQ(finished_run.exit_status, 0) << finished_run.err;
  EXPECT_EQ(std::ranges::count(finished_run.out, '\n'), 9);
  for (const char* line :
       {"began  to node2:7411, process 4711, boot .*, command: python3 serve.py\n",
        "keeper_started  keeper 99\n", "detaching\n", "restored  process 12, init 11\n",
        "committed\n", "aborted  io: no.way\n", "resolved  run here, says alice\n",
        "finished  the process runs at node2\n"}) {
    EXPECT_THAT(finished_run.out, ContainsRegex(std::string("  ") + kTime + "  " + line));
  }
}

TEST_F(Command, PrintsAJournalInUse) {
  const Journal owned = begin(dir_.path());
  EXPECT_EQ(print(owned.path()).exit_status, 0);
}

TEST_F(Command, PrintsAStateDirOldestFirst) {
  const auto first = journal({committed()});
  while (std::chrono::system_clock::now().time_since_epoch() <
         std::chrono::milliseconds(parse(bytes_of(first)).records.front().unix_ms() + 1)) {
  }
  const auto second = journal({aborted("late")});
  for (const auto& path : {dir_.path(), directory_of(dir_.path())}) {
    const Finished finished = print(path);
    EXPECT_EQ(finished.exit_status, 0) << finished.err;
    EXPECT_LT(finished.out.find(first.native()), finished.out.find(second.native()));
    EXPECT_THAT(finished.out, HasSubstr("aborted  io: late"));
  }
}

TEST_F(Command, PrintsACopyUnderAnyName) {
  const auto copy = dir_.path() / "copy-of-node1";
  std::filesystem::copy_file(journal({committed()}), copy);
  const Finished finished = print(copy);
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("committed"));
}

TEST_F(Command, ReportsATornRecord) {
  const auto path = journal({committed()});
  auto bytes = bytes_of(path);
  bytes.at(3 * kSlotBytes - 1) = std::byte{0};
  write_bytes(path, bytes);
  const Finished finished = print(path);
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("\n  torn: "));
  EXPECT_THAT(finished.out, Not(HasSubstr("committed")));
}

TEST_F(Command, ReportsDamageAfterTheGoodRecords) {
  const auto path = journal({committed()});
  gcr::test::damage_byte(path, 2 * kSlotBytes + 5);
  const Finished finished = print(dir_.path());
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.out, HasSubstr("  began  "));
  EXPECT_THAT(finished.out, HasSubstr("\n  damaged: journal " + path.native() + ": at byte 8192"));
}

TEST_F(Command, JsonHasTheSameContent) {
  const Uuid migration = Uuid::random();
  auto journal = begin(dir_.path(), migration);
  ASSERT_TRUE(journal.append(aborted("\"quoted\"")));
  ASSERT_TRUE(journal.append(finished()));
  const Struct result = json_of(dir_.path(), 0);
  const auto& file = result.fields().at("journals").list_value().values(0).struct_value().fields();
  EXPECT_EQ(file.at("path").string_value(), journal.path());
  EXPECT_EQ(file.at("migration_id").string_value(), migration.to_string());
  EXPECT_EQ(file.at("role").string_value(), "source");
  EXPECT_TRUE(file.at("finished").bool_value());
  EXPECT_FALSE(file.at("torn").bool_value());
  EXPECT_EQ(file.at("damage").string_value(), "");
  const auto& records = file.at("records").list_value();
  ASSERT_EQ(records.values_size(), 3);
  const auto& second = records.values(1).struct_value().fields();
  EXPECT_EQ(second.at("unix_ms").string_value(), std::to_string(journal.records()[1].unix_ms()));
  EXPECT_EQ(second.at("aborted").struct_value().fields().at("message").string_value(),
            "\"quoted\"");
}

TEST_F(Command, JsonReportsDamage) {
  const auto path = journal({});
  gcr::test::damage_byte(path, 0);
  const Struct result = json_of(path, 1);
  const auto& file = result.fields().at("journals").list_value().values(0).struct_value().fields();
  EXPECT_THAT(file.at("damage").string_value(), HasSubstr("the file is not a journal"));
  EXPECT_EQ(file.at("records").list_value().values_size(), 0);
}

TEST_F(Command, UnreadablePathIsOneErrorLine) {
  for (const auto& options : {std::vector<std::string>{}, {"--json"}}) {
    const Finished finished = print(dir_.path() / "nothing", options);
    EXPECT_EQ(finished.exit_status, 2);
    EXPECT_EQ(finished.out, "");
    EXPECT_THAT(finished.err, HasSubstr("nothing: No such file or directory\n"));
  }
}

TEST_F(Command, MissingPathIsAUsageError) {
  const Finished finished = run_cli({"journal"});
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.err, HasSubstr("PATH is required"));
}

}  // namespace
}  // namespace gcr::journal::test

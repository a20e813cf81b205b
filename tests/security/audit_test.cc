// Every migration that ends leaves one line that names the user, the process and the hosts, and no
// input can forge a second one.
#include "migrate-agent/daemon/main/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/daemon/journals.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

registry::Outcome outcome_of(journal::Role role) {
  registry::Outcome outcome;
  journal::Began& began = *outcome.mutable_migration();
  began.set_migration_id(std::string(16, '\x11'));
  began.set_role(role);
  began.set_peer("node2:7411");
  began.set_ordered_by("night-shift");
  began.set_uid(kAlice);
  began.add_members()->set_pid(4711);
  began.set_command("python3 serve.py");
  proto::MigrateReport& report = *outcome.mutable_report();
  report.set_migrated(true);
  report.set_destination_pid(99);
  report.set_processes(5);
  report.set_sent_vram_bytes(1000);
  report.set_sent_image_bytes(24);
  report.set_downtime_ms(412.34);
  return outcome;
}

std::string line_of(const registry::Outcome& outcome) {
  return audit_line(outcome, "node1", std::chrono::system_clock::from_time_t(1'700'000'000));
}

TEST(AuditLine, NamesUserProcessHostsAndOutcome) {
  EXPECT_EQ(
      line_of(outcome_of(journal::Began::SOURCE)),
      "time=\"2023-11-14T22:13:20.000Z\" host=\"node1\" role=\"source\" "
      "migration=\"11111111-1111-1111-1111-111111111111\" ordered_by=\"night-shift\" "
      "uid=\"71001\" user=\"uid 71001\" pid=\"4711\" processes=\"5\" command=\"python3 serve.py\" "
      "from=\"node1\" to=\"node2:7411\" outcome=\"migrated\" recovered=\"no\" "
      "sent_bytes=\"1024\" downtime_ms=\"412.3\" reason=\"\"");
  EXPECT_THAT(line_of(outcome_of(journal::Began::DESTINATION)),
              AllOf(HasSubstr("pid=\"99\""), HasSubstr("from=\"node2:7411\" to=\"node1\""),
                    HasSubstr("sent_bytes=\"\" downtime_ms=\"\"")));
}

TEST(AuditLine, HostileTextCannotForgeFieldsOrLines) {
  registry::Outcome outcome = outcome_of(journal::Began::SOURCE);
  outcome.mutable_migration()->set_command("x\" outcome=\"migrated\ntime=\"\\");
  outcome.mutable_migration()->set_ordered_by("\x1b[2J\xc2\x9b");
  outcome.mutable_migration()->set_peer(std::string(100'000, 'p'));
  const std::string line = line_of(outcome);
  EXPECT_THAT(line, AllOf(HasSubstr(R"(command="x\x22 outcome=\x22migrated\x0atime=\x22\x5c")"),
                          HasSubstr(R"(ordered_by="\x1b[2J\xc2\x9b")")));
  EXPECT_LT(line.size(), 4096U) << "one write";
  EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; }));
  constexpr int kFields = 17;
  EXPECT_EQ(std::ranges::count(line, '"'), 2 * kFields);
}

TEST(AuditLine, UnknownFieldsOfARecoveryAreEmpty) {
  registry::Outcome outcome = outcome_of(journal::Began::SOURCE);
  outcome.set_recovered(true);
  outcome.mutable_report()->clear_processes();
  EXPECT_THAT(line_of(outcome), HasSubstr("recovered=\"yes\" sent_bytes=\"\" downtime_ms=\"\""));
  EXPECT_THAT(line_of(outcome), HasSubstr(" processes=\"1\"")) << "as its journal began";
  outcome.mutable_migration()->clear_members();
  EXPECT_THAT(line_of(outcome), HasSubstr(" processes=\"\""));
}

class Audit : public testing::Test {
 protected:
  std::string lines() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  worker::Config config() const {
    worker::Config config;
    config.host = "node1";
    config.audit_log = log_;
    return config;
  }

  TemporaryFolder folder_;
  std::string log_ = folder_.path() + "/audit.log";
};

TEST_F(Audit, LinesAreAppendedToAFileOfRoot) {
  audit(config(), outcome_of(journal::Began::SOURCE));
  audit(config(), outcome_of(journal::Began::DESTINATION));
  const std::string text = lines();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
  struct stat info {};
  ASSERT_EQ(::stat(log_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(Audit, UnfinishedMigrationHasNoLine) {
  registry::Outcome outcome = outcome_of(journal::Began::SOURCE);
  outcome.mutable_report()->set_migrated(false);
  outcome.mutable_report()->set_committed(true);
  audit(config(), outcome);
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(Audit, LinkIsNotFollowed) {
  const std::string target = folder_.path() + "/target";
  std::filesystem::create_symlink(target, log_);
  audit(config(), outcome_of(journal::Began::SOURCE));
  EXPECT_FALSE(std::filesystem::exists(target));
}

TEST_F(Audit, RefusalsAndRecoveriesAreLogged) {
  control::test::Credentials credentials;
  AgentHome home;
  const Uuid undone = write_source(home.state_dir(), commit::SourceState::kWorking,
                                   {.command = "was under way", .uid = kAlice});
  AgentProcess agent(credentials, "audit_log = \"" + log_ + "\"\nhost = \"node1\"", home);
  ASSERT_TRUE(agent.wait_for_log("recovers " + undone.to_string()));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_THAT(lines(), AllOf(HasSubstr(undone.to_string()), HasSubstr("command=\"was under way\""),
                             HasSubstr("uid=\"71001\""), HasSubstr("recovered=\"yes\"")));

  const Sleeper alices(kAlice);
  const control::TlsFiles mine =
      credentials.issue({.role = "operator", .common_name = "night-shift"});
  const Finished refused =
      run_cli({agent.endpoint().to_string(), "127.0.0.1:1", std::to_string(alices.pid()), "--ca",
               mine.authority, "--cert", mine.certificate, "--key", mine.key});
  EXPECT_EQ(refused.exit_status, 3) << refused.output;
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  const std::string text = lines();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  EXPECT_THAT(text.substr(text.find('\n') + 1),
              AllOf(StartsWith("time="), HasSubstr("ordered_by=\"night-shift\" uid=\"71001\""),
                    HasSubstr("from=\"node1\" to=\"127.0.0.1:1\" outcome=\"refused\""),
                    Not(HasSubstr("reason=\"\""))));
}

}  // namespace
}  // namespace gcr::daemon::test

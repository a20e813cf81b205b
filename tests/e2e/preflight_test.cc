// `gcr-migrate preflight` between two hosts: it reports all findings of both sides at once, leaves
// nothing behind, and is right: a process that it accepts migrates.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Struct;
using testing::AllOf;
using testing::Contains;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

constexpr int kReadyExit = 0;
constexpr int kOften = 10;  ///< steps of a program between two lines

/// The output of `preflight --json`.
struct Preflight {
  int exit_code = -1;
  std::string err;
  Struct object;

  bool ready() const { return object.fields().at("ready").bool_value(); }

  /// Of findings with this severity; of all if it is empty.
  std::set<std::string> ids(const std::string& severity = "") const {
    std::set<std::string> ids;
    for (const auto& value : object.fields().at("findings").list_value().values()) {
      const auto& finding = value.struct_value().fields();
      const std::string& theirs = finding.at("severity").string_value();
      if (severity.empty() || theirs == severity) ids.insert(finding.at("id").string_value());
    }
    return ids;
  }
};

class PreflightTest : public testing::Test {
 protected:
  void start(const std::vector<std::string>& options = {}, std::uint64_t bytes = 16 * kMiB) {
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, bytes));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
  }

  CommandResult run_preflight(pid_t pid, const std::vector<std::string>& options) const {
    std::vector<std::string> command = hosts_->migrate_command(Host::kA, Host::kB, pid);
    const auto program = std::ranges::find(command, hosts_->variable("GCR_CLI"));
    command.insert(program + 1, "preflight");
    command.insert(command.end(), options.begin(), options.end());
    return run(command, kPatience);
  }

  Preflight preflight(pid_t pid, std::vector<std::string> options = {}) const {
    options.emplace_back("--json");
    const CommandResult result = run_preflight(pid, options);
    Preflight said{result.exit_code, result.err, {}};
    const auto parsed = google::protobuf::util::JsonStringToMessage(result.out, &said.object);
    EXPECT_TRUE(parsed.ok()) << result.out << result.err;
    return said;
  }

  /// A migration is refused for all findings of preflight.
  void expect_refusal_for(const Preflight& said, pid_t pid) const {
    const MigrateOutcome migration = hosts_->migrate(Host::kA, pid);
    EXPECT_EQ(migration.exit_code, kRefusedExit);
    for (const std::string& id : said.ids("blocker")) {
      EXPECT_THAT(migration.err, HasSubstr("[" + id + "]"));
    }
  }

  static std::set<std::string> files_below(const std::string& directory) {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (!entry.is_directory()) files.insert(entry.path());
    }
    return files;
  }

  static std::string status_field(pid_t pid, const std::string& name) {
    const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
    const auto at = text.find(name + ":");
    return at == text.npos ? "" : text.substr(at, text.find('\n', at) - at);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
};

TEST_F(PreflightTest, MovableProcessIsReadyAndDescribed) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Preflight said = preflight(counter_->pid());
  EXPECT_EQ(said.exit_code, kReadyExit) << said.err;
  EXPECT_TRUE(said.ready());
  EXPECT_THAT(said.ids("blocker"), IsEmpty());
  const auto& fields = said.object.fields();
  EXPECT_EQ(fields.at("schema").number_value(), 1);
  const auto& process = fields.at("process").struct_value().fields();
  EXPECT_THAT(process.at("command").string_value(), HasSubstr("counter"));
  EXPECT_GE(process.at("vram_bytes").number_value(), 16.0 * kMiB);
  const auto& gpu = process.at("gpus").list_value().values(0).struct_value().fields();
  EXPECT_THAT(gpu.at("uuid").string_value(), testing::StartsWith("GPU-6c72"));
  for (const char* host : {"source", "destination"}) {
    const auto& facts = fields.at("hosts").struct_value().fields().at(host).struct_value().fields();
    EXPECT_GE(facts.at("criu_version").number_value(), 40101) << host;
    EXPECT_EQ(facts.at("gpus").list_value().values_size(), 1) << host;
  }
  const CommandResult text = run_preflight(counter_->pid(), {});
  EXPECT_EQ(text.exit_code, kReadyExit);
  EXPECT_THAT(text.out, EndsWith("ready\n"));
  EXPECT_EQ(text.err, "");
}

TEST_F(PreflightTest, LeavesNothingAndDisturbsNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  const HostUse source = hosts_->use(Host::kA);
  const HostUse destination = hosts_->use(Host::kB);
  const auto source_files = files_below(hosts_->variable("STATE", Host::kA));
  const auto destination_files = files_below(hosts_->variable("STATE", Host::kB));
  const std::uint64_t descriptors = hosts_->descriptors(Host::kB);
  const std::string threads = status_field(counter_->pid(), "Threads");
  ASSERT_TRUE(preflight(counter_->pid()).ready());
  EXPECT_EQ(hosts_->use_coming_to(Host::kA, source), source);
  EXPECT_EQ(hosts_->use_coming_to(Host::kB, destination), destination);
  EXPECT_EQ(files_below(hosts_->variable("STATE", Host::kA)), source_files);
  EXPECT_EQ(files_below(hosts_->variable("STATE", Host::kB)), destination_files);
  EXPECT_TRUE(hosts_->wait_for_descriptors(Host::kB, descriptors));
  EXPECT_EQ(status_field(counter_->pid(), "Threads"), threads);
  EXPECT_EQ(status_field(counter_->pid(), "TracerPid"), "TracerPid:\t0");
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
}

TEST_F(PreflightTest, EachSideReportsAllItsFindingsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(
      start({"--prepare-b", "mount -t tmpfs none " GCR_BINARY_DIR "/lib", "--vram-b", "64M"}));
  int primary = -1;
  int secondary = -1;
  ASSERT_EQ(::openpty(&primary, &secondary, nullptr, nullptr, nullptr), 0);
  const UniqueFd terminal(primary);
  const UniqueFd slave(secondary);
  auto command = counter_command(*hosts_, 0, kCounterPort + 1);
  command.insert(command.begin(), {hosts_->variable("GCR_CLI"), "run", "--"});
  Program program(hosts_->on_host(Host::kA, command), {slave.get(), slave.get(), slave.get()});
  std::optional<std::string> answer;
  for (int attempt = 0; attempt < 300 && !answer; ++attempt) {
    answer = client_->ask(hosts_->address(Host::kA), kCounterPort + 1, Milliseconds(100));
  }
  ASSERT_TRUE(answer);
  const Preflight said = preflight(program.pid());
  EXPECT_EQ(said.exit_code, kRefusedExit);
  EXPECT_THAT(said.ids("blocker"), testing::ElementsAre("terminal"));
  EXPECT_THAT(said.ids("warning"), Contains("destination-not-asked"));
  const CommandResult text = run_preflight(program.pid(), {});
  EXPECT_EQ(text.exit_code, kRefusedExit);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("blocker terminal at the source\n  found   standard input"),
                    HasSubstr("\n  why     "), HasSubstr("\n  remedy  "), HasSubstr("refused: ")));
  expect_refusal_for(said, program.pid());
  EXPECT_THAT(read_file(hosts_->variable("LOG", Host::kB)), Not(HasSubstr("receiving")));

  const Preflight both = preflight(counter_->pid());
  EXPECT_THAT(both.ids("blocker"), IsSupersetOf({"file-missing", "gpu-map"}));
  expect_refusal_for(both, counter_->pid());
  EXPECT_THAT(read_file(hosts_->variable("LOG", Host::kB)), HasSubstr("receiving"));
}

TEST_F(PreflightTest, UnreachableDestinationIsAFinding) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->stop_agent(Host::kB);
  const Preflight alone = preflight(counter_->pid());
  EXPECT_EQ(alone.exit_code, kRefusedExit);
  EXPECT_THAT(alone.ids("blocker"), testing::ElementsAre("destination-unreachable"));

  const auto stranger = start_agent_of_another_version(*hosts_, Host::kB);
  const Preflight refused = preflight(counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_THAT(refused.ids("blocker"), testing::ElementsAre("destination-refused"));

  hosts_->stop_agent(Host::kA);
  EXPECT_EQ(run_preflight(counter_->pid(), {}).exit_code, kUnreachableExit);
}

TEST_F(PreflightTest, MissingOrForbiddenProcessIsAFinding) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(preflight(4'194'303).ids(), Contains("no-process"));
  EXPECT_THAT(preflight(1).ids(), Contains("not-ours"));
}

TEST_F(PreflightTest, PortTakenAtTheDestinationIsABlocker) {
  ASSERT_NO_FATAL_FAILURE(start());
  App resident = start_counter(*hosts_, Host::kB, kMiB);
  const Preflight said = preflight(counter_->pid());
  EXPECT_THAT(said.ids("blocker"), testing::ElementsAre("address-in-use"));
  EXPECT_EQ(hosts_->migrate(Host::kA, counter_->pid()).exit_code, kRefusedExit);
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
}

TEST_F(PreflightTest, ProcessLockedByAnotherIsABlocker) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string tool = hosts_->program_path("cuda-checkpoint-tool");
  const auto toggle = [&](const char* action) {
    const std::string command =
        "echo " + std::string(action) + " " + std::to_string(counter_->pid()) + " | " + tool;
    return run(hosts_->on_host(Host::kA, {"sh", "-c", command}), kPatience);
  };
  ASSERT_THAT(toggle("lock").out, HasSubstr("lock ok"));
  EXPECT_THAT(preflight(counter_->pid()).ids("blocker"), Contains("cuda-state"));
  ASSERT_THAT(toggle("unlock").out, HasSubstr("unlock ok"));
  EXPECT_TRUE(preflight(counter_->pid()).ready());
}

TEST_F(PreflightTest, FullAgentIsABlocker) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-a", "sed -i '1i max_migrations = 1' $1/agent.toml"}));
  BackgroundCommand migration(
      hosts_->migrate_command(Host::kA, Host::kB, counter_->pid(), {"--pause-before-switchover"}));
  const auto paused = [](const std::string& output) {
    return output.find("paused: ") != output.npos;
  };
  ASSERT_TRUE(migration.wait_for_output(paused, kPatience)) << migration.err_so_far();
  BackgroundCommand other(hosts_->on_host(Host::kA, {"sleep", "infinity"}));
  EXPECT_THAT(preflight(other.program().pid()).ids("blocker"), Contains("too-many-migrations"));
}

TEST_F(PreflightTest, RunningMigrationIsReportedAndUndisturbed) {
  ASSERT_NO_FATAL_FAILURE(start({}, 256 * kMiB));
  auto command = hosts_->migrate_command(Host::kA, Host::kB, counter_->pid());
  command.insert(command.end(), {"--max-bandwidth", "64M"});
  BackgroundCommand migration(command);
  ASSERT_TRUE(migration.wait_for_output(
      [](const std::string& text) { return text.find("precopy") != std::string::npos; },
      kPatience));
  const Preflight said = preflight(counter_->pid());
  EXPECT_EQ(said.exit_code, kRefusedExit);
  EXPECT_THAT(said.ids("blocker"), Contains("in-migration"));
  EXPECT_TRUE(migrated(TwoHosts::parse_outcome(migration.finish(kPatience))));
}

TEST_F(PreflightTest, AcceptedProcessMigrates) {
  hosts_.emplace(std::vector<std::string>{"--vram", "3G"});
  client_.emplace(hosts_->variable("NS", Host::kA));
  const auto moves = [&](const App& app, const char* name) {
    const Preflight said = preflight(app.pid());
    ASSERT_TRUE(said.ready()) << name << ": " << said.object.ShortDebugString();
    EXPECT_TRUE(migrated(hosts_->migrate(Host::kA, app.pid()))) << name;
  };
  const App counter = start_counter(*hosts_, Host::kA, 16 * kMiB);
  ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
  moves(counter, "counter");
  moves(start_scribbler(*hosts_, Host::kA, 16 * kMiB, {}), "scribbler");
  moves(start_stencil(*hosts_, Host::kA, 16 * kMiB, kOften), "stencil");
  moves(start_alloc_styles(*hosts_, Host::kA, kOften), "alloc_styles");
}

}  // namespace
}  // namespace gcr::e2e

// A process that cannot be moved is refused: one clear error, its own exit code, and the program on
// the source runs on undisturbed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

constexpr int kUsageExit = 2;
constexpr int kNotAuthorisedExit = 5;

/// During its lifetime there are no hugepages but those in use, and the kernel allocates none. Not
/// concurrently with other agents: they raise that limit, and a killed one leaves it too high.
class NoFreeHugepages {
 public:
  NoFreeHugepages() {
    for (const char* path : kPaths) {
      before_.push_back(read_file(path));
      write(path, "0");
    }
  }
  ~NoFreeHugepages() {
    for (std::size_t i = 0; i < before_.size(); ++i) write(kPaths[i], before_[i]);
  }
  NoFreeHugepages(const NoFreeHugepages&) = delete;
  NoFreeHugepages& operator=(const NoFreeHugepages&) = delete;

 private:
  static constexpr const char* kPaths[] = {"/proc/sys/vm/nr_hugepages",
                                           "/proc/sys/vm/nr_overcommit_hugepages"};
  static void write(const char* path, const std::string& text) { std::ofstream(path) << text; }
  std::vector<std::string> before_;
};

/// Refused with `exit_code`, in one line on standard error that contains every one of `words`.
AssertionResult refused(const MigrateOutcome& outcome, int exit_code,
                        const std::vector<std::string>& words) {
  const auto complain = [&](const std::string& what) {
    return AssertionFailure() << what << "; exit code " << outcome.exit_code << "\n"
                              << outcome.out << outcome.err;
  };
  if (outcome.exit_code != exit_code) return complain("not exit code " + std::to_string(exit_code));
  const auto errors = std::count(outcome.err.begin(), outcome.err.end(), '\n');
  if (errors != 1) return complain(std::to_string(errors) + " lines of errors, not one");
  for (const std::string& word : words) {
    if (outcome.err.find(word) == std::string::npos) return complain("no \"" + word + "\"");
  }
  return AssertionSuccess();
}

/// A counter on host a that has answered once, and what both hosts hold then.
class RefusalTest : public testing::Test {
 protected:
  void start(const std::vector<std::string>& options = {}, std::uint64_t bytes = 16 * kMiB) {
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, bytes));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  MigrateOutcome migrate() const { return hosts_->migrate(Host::kA, counter_->pid()); }

  /// The counter continues with its next number, and no host holds more or less than before.
  void expect_untouched() {
    EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, source_), source_);
    EXPECT_EQ(hosts_->use_coming_to(Host::kB, destination_), destination_);
  }

  /// Starts a second counter with these streams; its migration must be refused for the reason `id`,
  /// and it runs on.
  void expect_refusal_with_streams(const Streams& streams, const std::string& id) {
    auto command = counter_command(*hosts_, 0, kSecondPort);
    command.insert(command.begin(), {hosts_->variable("GCR_CLI"), "run", "--"});
    Program program(hosts_->on_host(Host::kA, command), streams);
    ASSERT_EQ(ask_second(), std::to_string(kCounterFirst));
    EXPECT_TRUE(refused(hosts_->migrate(Host::kA, program.pid()), kRefusedExit, {id}));
    EXPECT_EQ(ask_second(), std::to_string(kCounterFirst + 1));
  }

  /// Asks the program on the second port until it answers.
  std::string ask_second() const {
    for (int attempt = 0; attempt < 300; ++attempt) {
      const auto answer = client_->ask(hosts_->address(Host::kA), kSecondPort, Milliseconds(100));
      if (answer) return *answer;
    }
    return "";
  }

  static constexpr std::uint16_t kSecondPort = kCounterPort + 1;
  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse source_;
  HostUse destination_;
};

TEST_F(RefusalTest, MissingProcessIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, 4'194'303), kRefusedExit, {"4194303"}));
  expect_untouched();
}

TEST_F(RefusalTest, ForbiddenProcessIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, 1), kRefusedExit, {"not-ours"}));
  EXPECT_TRUE(
      refused(hosts_->migrate(Host::kA, hosts_->agent_pid(Host::kA)), kRefusedExit, {"not-ours"}));
  expect_untouched();
}

TEST_F(RefusalTest, StandardStreamsOnATerminalAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  int primary = -1;
  int secondary = -1;
  ASSERT_EQ(::openpty(&primary, &secondary, nullptr, nullptr, nullptr), 0);
  const UniqueFd terminal(primary);
  const UniqueFd slave(secondary);
  expect_refusal_with_streams({slave.get(), slave.get(), slave.get()}, "terminal");
  expect_untouched();
}

TEST_F(RefusalTest, StandardStreamsOnAnOutsidePipeAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  expect_refusal_with_streams({-1, writer.get(), writer.get()}, "outside-pipe");
  expect_untouched();
}

TEST_F(RefusalTest, ProcessWithoutThePreloadLibraryIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  App bare = hosts_->start_app(Host::kA, counter_command(*hosts_, 0, kSecondPort), false);
  ASSERT_EQ(ask_second(), std::to_string(kCounterFirst));
  // No driver could do for HIP what the library does, so nothing can be allowed there.
  const bool by_hip = ::getenv("GCR_GPU") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, bare.pid()), kRefusedExit,
                      {by_hip ? "no-door" : "no-library", "gcr-migrate run"}));
  EXPECT_EQ(ask_second(), std::to_string(kCounterFirst + 1));
}

TEST_F(RefusalTest, ProcessWithoutCudaIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  App sleeper = start_sleeper(*hosts_, Host::kA);
  source_ = hosts_->use(Host::kA);
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, sleeper.pid()), kRefusedExit, {"no-door"}));
  EXPECT_TRUE(sleeper.program().running());
  expect_untouched();
}

TEST_F(RefusalTest, ManagedMemoryIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  App managed = start_managed(*hosts_, Host::kA);
  ASSERT_EQ(ask_second(), "1");
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, managed.pid()), kRefusedExit, {"managed-memory"}));
  EXPECT_EQ(ask_second(), "2");
}

/// A program in a state of tests/e2e/not_restored.py, and the finding that names it.
struct NotRestored {
  const char* state;
  const char* finding;
};

class NotRestoredTest : public RefusalTest, public testing::WithParamInterface<NotRestored> {};

TEST_P(NotRestoredTest, IsRefusedAndRunsOn) {
  ASSERT_NO_FATAL_FAILURE(start());
  const App app = hosts_->start_app(
      Host::kA, {"python3", GCR_SOURCE_DIR "/tests/e2e/not_restored.py", GetParam().state});
  ASSERT_TRUE(app.wait_for_lines(1)) << app.output();
  EXPECT_TRUE(refused(hosts_->migrate(Host::kA, app.pid()), kRefusedExit, {GetParam().finding}));
  const std::size_t before = app.lines().size();
  ASSERT_TRUE(app.wait_for_lines(before + 5)) << app.output();
}

INSTANTIATE_TEST_SUITE_P(Refusal, NotRestoredTest,
                         testing::Values(NotRestored{"exported-pool", "pool-memory"},
                                         NotRestored{"imported-pool", "pool-memory"},
                                         NotRestored{"host-pool", "pool-memory"},
                                         NotRestored{"profiler", "profiler"}));

TEST_F(RefusalTest, TooLittleFreeVramIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "512M"}, 256 * kMiB));
  App resident = start_counter(*hosts_, Host::kB, 256 * kMiB);
  destination_ = hosts_->use(Host::kB);
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"vram-too-small", "MiB"}));
  expect_untouched();
}

TEST_F(RefusalTest, SmallerGpusAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram-b", "64M"}, 256 * kMiB));
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"gpu-map", "GiB"}));
  expect_untouched();
}

TEST_F(RefusalTest, TooFewHugepagesAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--hugepages", "require"}, 256 * kMiB));
  const NoFreeHugepages none;
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"hugepages"}));
  expect_untouched();
}

TEST_F(RefusalTest, ReservedDestinationMemoryIsNotUsed) {
  ASSERT_NO_FATAL_FAILURE(start());
  const auto plenty = []() -> Result<hostmem::Memory> {
    return hostmem::Memory{.ordinary_bytes = std::uint64_t{1} << 60};
  };
  auto other = hostmem::MemoryReservation::create(
      hostmem::reservations_in(hosts_->variable("RUNTIME", Host::kB)), plenty);
  ASSERT_TRUE(other) << other.error().message();
  ASSERT_TRUE((*other)->add({.ordinary_bytes = std::uint64_t{1} << 50}));
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"memory-too-small"}));
  other->reset();
  expect_untouched();
  EXPECT_TRUE(migrated(migrate()));
}

TEST_F(RefusalTest, MissingMappedFileIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", "mount -t tmpfs none " GCR_BINARY_DIR "/lib"}));
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"file-missing", "libgcr-preload.so"}));
  expect_untouched();
}

TEST_F(RefusalTest, DifferentMappedFileIsRefused) {
  ASSERT_NO_FATAL_FAILURE(
      start({"--prepare-b", "mount --bind /bin/sh " GCR_BINARY_DIR "/lib/libgcr-preload.so"}));
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"file-differs", "libgcr-preload.so"}));
  expect_untouched();
}

TEST_F(RefusalTest, UnreachableAgentIsAnError) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->stop_agent(Host::kB);
  EXPECT_TRUE(refused(migrate(), kUnreachableExit, {hosts_->address(Host::kB)}));
  hosts_->start_agent(Host::kB);
  hosts_->stop_agent(Host::kA);
  EXPECT_TRUE(refused(migrate(), kUnreachableExit, {hosts_->address(Host::kA)}));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  hosts_->start_agent(Host::kA);
  EXPECT_TRUE(migrated(migrate()));
}

TEST_F(RefusalTest, OtherProtocolVersionIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->stop_agent(Host::kB);
  const auto stranger = start_agent_of_another_version(*hosts_, Host::kB);
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {"version", "99"}));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_EQ(hosts_->use_coming_to(Host::kA, source_), source_);
}

TEST_F(RefusalTest, OperatorOfAnotherAuthorityIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string strangers = hosts_->directory() + "/strangers";
  const CommandResult made =
      run({(GCR_SOURCE_DIR "/scripts/make-certs"), "--dir", strangers, "--operator", "operator"},
          Milliseconds(60'000));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  auto command = hosts_->migrate_command(Host::kA, Host::kB, counter_->pid());
  const std::string ours = hosts_->directory() + "/tls/operator";
  for (std::string& word : command) {
    if (word.starts_with(ours)) word.replace(0, ours.size(), strangers + "/operator");
  }
  EXPECT_TRUE(refused(TwoHosts::parse_outcome(run(command, Milliseconds(60'000))),
                      kNotAuthorisedExit, {"certificate"}));
  expect_untouched();
}

TEST_F(RefusalTest, DestinationOfAnotherAuthorityIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string tls = hosts_->directory() + "/tls";
  const std::string strangers = hosts_->directory() + "/strangers";
  const CommandResult made = run({(GCR_SOURCE_DIR "/scripts/make-certs"), "--dir", strangers,
                                  "--agent", "host-b," + hosts_->address(Host::kB)},
                                 Milliseconds(60'000));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  hosts_->stop_agent(Host::kB);
  const CommandResult changed =
      run({"sed", "-i", "s:" + tls + "/:" + strangers + "/:", hosts_->variable("CONFIG", Host::kB)},
          Milliseconds(60'000));
  ASSERT_EQ(changed.exit_code, 0) << changed.err;
  hosts_->start_agent(Host::kB);
  EXPECT_TRUE(refused(migrate(), kNotAuthorisedExit, {"certificate"}));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_EQ(hosts_->use_coming_to(Host::kA, source_), source_);
}

TEST_F(RefusalTest, ProcessInMigrationIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  BackgroundCommand first(
      hosts_->migrate_command(Host::kA, Host::kB, counter_->pid(), {"--pause-before-switchover"}));
  ASSERT_TRUE(first.wait_for_output(
      [](const std::string& text) { return text.find("paused: ") != std::string::npos; },
      Milliseconds(120'000)));
  EXPECT_TRUE(refused(migrate(), kRefusedExit, {std::to_string(counter_->pid())}));
  first.program().signal(SIGINT);
  EXPECT_FALSE(TwoHosts::parse_outcome(first.finish(Milliseconds(120'000))).migrated());
  expect_untouched();
}

TEST(Usage, WrongArgumentsHaveTheUsageExitStatus) {
  const std::string cli = GCR_BINARY_DIR "/bin/gcr-migrate";
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {}, {"one"}, {"a", "b", "not-a-pid"}, {"a", "b", "-1"}, {"--no-such-option"}, {"run"}}) {
    std::vector<std::string> command = {cli};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const CommandResult result = run(command, Milliseconds(60'000));
    EXPECT_EQ(result.exit_code, kUsageExit) << result.out << result.err;
    EXPECT_NE(result.err, "");
  }
}

}  // namespace
}  // namespace gcr::e2e

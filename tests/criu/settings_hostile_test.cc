// The settings of a program are in force after a move, above all those that confine it, and nothing
// is inherited from the agent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/sockets/socket_options.h"
#include "migrate-agent/criu/threads/apart.h"
#include "migrate-agent/criu/threads/landlock.h"
#include "migrate-agent/criu/threads/settings.h"
#include "migrate-agent/criu/threads/thread_calls.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kTell = 40;     // of states.c
constexpr int kConfine = 41;  // of states.c
constexpr char kSockets[] = " sockets=reno,1048576,54321,65536,1,1,32,1,1,1 ";

/// No group: they are stopped only by SIGSTOP.
const Standstill kStopped;

bool kernel_has_landlock() { return ::syscall(444, nullptr, 0, 1) > 0; }

class SettingsTest : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }
  fs::path states() const { return directory_.path() / "states"; }

  void start(const std::string& sandbox) {
    start(sandbox, {GCR_COUNTING_PROGRAM, file().string(), "count"});
    wait_for_progress(file(), {}, 5);
  }

  void start(const std::string& sandbox, const std::vector<std::string>& program) {
    std::vector<std::string> command{"/usr/bin/env", "LD_PRELOAD=" GCR_STATES_LIBRARY,
                                     "GCR_STATES=" + states().string(), "GCR_SANDBOX=" + sandbox};
    command.insert(command.end(), program.begin(), program.end());
    program_.emplace(command);
  }

  /// The report of the first thread, or of the second, about itself.
  std::string ask(pid_t pid, std::size_t thread) const {
    const auto lines = [this] {
      std::ifstream in(states());
      std::vector<std::string> all;
      for (std::string line; std::getline(in, line);) all.push_back(line);
      return all;
    };
    const std::size_t before = lines().size();
    ::syscall(SYS_tgkill, pid, procfs::threads(pid).at(thread), kTell);
    for (int i = 0; i < 1000 && lines().size() == before; ++i) ::poll(nullptr, 0, 10);
    return lines().size() > before ? lines().back() : "no answer";
  }

  /// Stops it, and starts it again from its images; its settings are applied again.
  void move() {
    const procfs::Process process =
        tree_ ? tree_->root() : procfs::Process::open(program_->pid()).value();
    const fs::path images = directory_.make("images-" + std::to_string(moves_++));
    const auto dumped = dump(criu_command(), process.pid(), images);
    ASSERT_TRUE(dumped) << dumped.error().message();
    const auto observed = read_settings({process.pid()}, kStopped);
    ASSERT_TRUE(observed) << observed.error().message();
    const auto options = read_socket_options({process.pid()});
    ASSERT_TRUE(options) << options.error().message();
    ASSERT_TRUE(kill_stopped(process));
    if (program_) program_->reap();
    program_.reset();
    tree_.reset();
    auto tree = restore(criu_command(), images);
    ASSERT_TRUE(tree) << tree.error().message();
    tree_.emplace(std::move(*tree));
    const auto refused = apply_settings({{tree_->pid(), observed->front().settings}}, kStopped);
    ASSERT_TRUE(refused) << refused.error().message();
    EXPECT_THAT(*refused, testing::IsEmpty());
    const auto without = apply_socket_options({{tree_->pid(), options->front()}});
    ASSERT_TRUE(without) << without.error().message();
    EXPECT_THAT(*without, testing::IsEmpty());
    EXPECT_EQ(state_of(tree_->pid()), 'T');
    ASSERT_TRUE(resume_stopped(tree_->root()));
  }

  /// Moves it once, and stops it: settings can be applied.
  void move_and_stop() {
    ASSERT_NO_FATAL_FAILURE(move());
    ::kill(tree_->pid(), SIGSTOP);
    ASSERT_TRUE(procfs::wait_until_stopped(tree_->pid()));
  }

  Directory directory_;
  std::optional<Program> program_;
  std::optional<RestoredTree> tree_;
  int moves_ = 0;
};

TEST_F(SettingsTest, SurviveARoundTrip) {
  start("all");
  const std::string first = ask(program_->pid(), 0);
  const std::string second = ask(program_->pid(), 1);
  EXPECT_THAT(first, HasSubstr(" memory-deny-write-execute=1 memory-merge=1 lock-future=1"));
  EXPECT_THAT(first, HasSubstr(kSockets));
  EXPECT_THAT(second, HasSubstr("numa-mode=3 "));
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(move());
    EXPECT_EQ(ask(tree_->pid(), 0), first);
    EXPECT_EQ(ask(tree_->pid(), 1), second);
  }
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

// A released thread has to run before it is stopped again: here, only if no other does.
TEST_F(SettingsTest, ThreadsStayStoppedAfterReading) {
  start("none");
  const std::vector<pid_t> threads = procfs::threads(program_->pid());
  const std::jthread busy([](const std::stop_token& end) {
    while (!end.stop_requested()) {
    }
  });
  cpu_set_t cpus;
  ASSERT_EQ(::sched_getaffinity(0, sizeof cpus, &cpus), 0);
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && CPU_COUNT(&cpus) > 1; --cpu) CPU_CLR(cpu, &cpus);
  ASSERT_EQ(
      ::pthread_setaffinity_np(const_cast<std::jthread&>(busy).native_handle(), sizeof cpus, &cpus),
      0);
  for (const pid_t tid : threads) {
    const sched_param no_priority{};
    ASSERT_EQ(::sched_setaffinity(tid, sizeof cpus, &cpus), 0);
    ASSERT_EQ(::sched_setscheduler(tid, SCHED_IDLE, &no_priority), 0);
  }
  ASSERT_TRUE(program_->process().send(SIGSTOP));
  ASSERT_TRUE(procfs::wait_until_stopped(program_->pid()));
  for (int i = 0; i < 3; ++i) {
    auto observed = read_settings({program_->pid()}, kStopped);
    // Where others want that CPU too, a thread may not get to its stop in time.
    while (!observed && observed.error().code() == Code::kTimeout) {
      observed = read_settings({program_->pid()}, kStopped);
    }
    ASSERT_TRUE(observed) << observed.error().message();
    for (const pid_t tid : threads) EXPECT_EQ(state_of(tid), 'T');
  }
}

/// A process with write access may change the program's code while its settings are read.
TEST_F(SettingsTest, UnexpectedSystemCallIsDetected) {
  start("none");
  ASSERT_TRUE(program_->process().send(SIGSTOP));
  ASSERT_TRUE(procfs::wait_until_stopped(program_->pid()));
  const auto site = CallSite::find(program_->pid());
  ASSERT_TRUE(site) << site.error().message();
  constexpr unsigned char kGetPid[] = {0xb8, SYS_getpid, 0, 0, 0, 0x0f, 0x05};
  ASSERT_EQ(::pwrite((*site)->memory.get(), kGetPid, sizeof(kGetPid),
                     static_cast<off_t>((*site)->instruction)),
            static_cast<ssize_t>(sizeof(kGetPid)));
  Result<std::int64_t> made = 0;
  ASSERT_TRUE(run_apart([&]() -> Status {
    GCR_ASSIGN(auto thread, ThreadCalls::seize(*site, program_->pid(), false));
    GCR_TRY(thread->wait_until_stopped());
    made = thread->call({SYS_gettid, {}});
    return thread->let_go();
  }));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kDataLoss);
}

TEST_F(SettingsTest, EndOfCriuSendsNoParentDeathSignal) {
  start("orphan");
  const std::string before = ask(program_->pid(), 0);
  EXPECT_THAT(before, HasSubstr("parent-death-signal=9"));
  ASSERT_NO_FATAL_FAILURE(move());
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
  EXPECT_EQ(ask(tree_->pid(), 0), before);
}

TEST_F(SettingsTest, AreNotInheritedFromTheAgent) {
  start("none");
  const std::string before = ask(program_->pid(), 0);
  constexpr int kIdle = 3 << 13;
  const int slack = ::prctl(PR_GET_TIMERSLACK);
  ::prctl(PR_SET_TIMERSLACK, 77'777);
  ::syscall(SYS_ioprio_set, 1, 0, kIdle);
  ASSERT_NO_FATAL_FAILURE(move());
  ::prctl(PR_SET_TIMERSLACK, slack);
  ::syscall(SYS_ioprio_set, 1, 0, 0);
  EXPECT_EQ(ask(tree_->pid(), 0), before);
}

TEST_F(SettingsTest, KeyringIsNotInheritedFromTheAgent) {
  start("none");
  const std::string before = ask(program_->pid(), 0);
  EXPECT_THAT(before, HasSubstr("foreign-key=0"));
  ASSERT_GE(::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr), 0);
  ASSERT_GE(::syscall(SYS_add_key, "user", "gcr-test-secret", "x", 1, KEY_SPEC_SESSION_KEYRING), 0);
  ASSERT_NO_FATAL_FAILURE(move());
  ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  EXPECT_EQ(ask(tree_->pid(), 0), before);
}

TEST_F(SettingsTest, MalformedOnesAreRefused) {
  start("none");
  ASSERT_NO_FATAL_FAILURE(move());
  const auto refusal = [&](const char* name, int thread) {
    Settings settings;
    settings.Add()->set_name(name);
    settings[0].set_thread(thread);
    ::kill(tree_->pid(), SIGSTOP);
    EXPECT_TRUE(procfs::wait_until_stopped(tree_->pid()));
    const auto applied = apply_settings({{tree_->pid(), settings}}, kStopped);
    return applied ? Code::kInvalid : applied.error().code();
  };
  EXPECT_EQ(refusal("no-such-setting", 0), Code::kProtocol);
  EXPECT_EQ(refusal("timer-slack", 0), Code::kProtocol);
  EXPECT_EQ(refusal("memory-merge", 3), Code::kProtocol);
  EXPECT_EQ(refusal("extended-state", 0), Code::kProtocol);
}

TEST_F(SettingsTest, RefusedConfinementEndsTheRestore) {
  start("none");
  ASSERT_NO_FATAL_FAILURE(move_and_stop());
  Settings settings;
  settings.Add()->set_name("memory-deny-write-execute");
  settings[0].set_value(0x80);  // no bit that this kernel knows
  settings[0].set_needed(true);
  const auto refused = apply_settings({{tree_->pid(), settings}}, kStopped);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("[mdwe]"));
  settings[0].set_needed(false);
  const auto noted = apply_settings({{tree_->pid(), settings}}, kStopped);
  ASSERT_TRUE(noted) << noted.error().message();
  EXPECT_THAT(*noted, testing::ElementsAre(HasSubstr("memory-deny-write-execute")));
}

bool processor_has_tiles() {
  std::ifstream in("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return text.find(" amx_int8") != std::string::npos;
}

/// The number after "name=".
long number_in(const std::string& said, const std::string& name) {
  const std::size_t at = said.find(name + "=");
  return at == std::string::npos ? -1 : std::stol(said.substr(at + name.size() + 1));
}

TEST_F(SettingsTest, TilesOfAMultiplyingThreadSurvive) {
  if (!processor_has_tiles()) GTEST_SKIP() << "the processor has no AMX";
  start("tiles");
  for (int i = 0; i < 10; ++i) {
    const pid_t pid = tree_ ? tree_->pid() : program_->pid();
    const long before = number_in(ask(pid, 1), "right-products");
    EXPECT_GT(before, 0);
    ASSERT_NO_FATAL_FAILURE(move());
    std::string said;
    for (int looks = 0; looks < 100 && number_in(said, "right-products") <= before + 1; ++looks) {
      ::poll(nullptr, 0, 10);
      said = ask(tree_->pid(), 1);
    }
    EXPECT_GT(number_in(said, "right-products"), before + 1) << said;
    EXPECT_EQ(number_in(said, "wrong-products"), 0) << said;
  }
}

TEST_F(SettingsTest, StateUnknownToThisCpuEndsTheRestore) {
  start("none");
  ASSERT_NO_FATAL_FAILURE(move_and_stop());
  Settings settings;
  settings.Add()->set_name("extended-state");
  settings[0].set_thread(procfs::namespace_pids(std::to_string(tree_->pid())).back());
  settings[0].set_value(std::uint64_t{1} << 62);
  settings[0].set_state("?");
  settings[0].set_needed(true);
  const auto refused = apply_settings({{tree_->pid(), settings}}, kStopped);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  EXPECT_THAT(refused.error().message(), HasSubstr("no component 62"));
}

class Landlocked : public SettingsTest {
 protected:
  Landlocked() {
    if (!kernel_has_landlock()) skip_ = true;
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << "the kernel has no Landlock";
  }
  bool skip_ = false;
};

TEST_F(Landlocked, OnlyLandlockedThreadsAreFound) {
  start("landlock");
  EXPECT_EQ(threads_in_landlock(program_->pid()), procfs::threads(program_->pid()));
  wait_for_progress(file(), read_output(file()), 5);
  Program other(directory_.path() / "other", "count");
  wait_for_progress(directory_.path() / "other", {}, 5);
  EXPECT_THAT(threads_in_landlock(other.pid()), testing::IsEmpty());
  expect_gapless(wait_for_progress(directory_.path() / "other", {}, 20));
}

TEST_F(Landlocked, LandlockEnteredLateIsFoundInTheDump) {
  start("all");
  const std::vector<pid_t> threads = procfs::threads(program_->pid());
  ::syscall(SYS_tgkill, program_->pid(), threads.at(1), kConfine);
  ask(program_->pid(), 1);  // the signals arrive in order
  const auto dumped = dump(criu_command(), program_->pid(), directory_.make("images"));
  ASSERT_TRUE(dumped) << dumped.error().message();
  const auto observed = read_settings({program_->pid()}, kStopped);
  ASSERT_TRUE(observed) << observed.error().message();
  EXPECT_THAT(observed->front().in_landlock, testing::ElementsAre(threads.at(1)));
  const Output before = read_output(file());
  ASSERT_TRUE(resume_stopped(program_->process()));
  expect_gapless(wait_for_progress(file(), before, 20));
}

/// A filter that kills the process if the calls are made in its threads.
TEST_F(SettingsTest, AreReadDespiteASeccompFilter) {
  start("filter", {"/bin/sleep", "1000"});
  while (procfs::status_field(std::to_string(program_->pid()), "Seccomp") != "2") {
    ::poll(nullptr, 0, 10);
  }
  const std::string before = ask(program_->pid(), 0);
  ASSERT_NO_FATAL_FAILURE(move());
  EXPECT_EQ(ask(tree_->pid(), 0), before);
}

}  // namespace
}  // namespace gcr::criu::test

// A suspended job is checkpointed and moved without its GPU, and arrives suspended. After every
// failure it is suspended at one of the hosts.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/ring.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/wait_until.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr std::uint64_t kSuspendedVram = 32 * kMiB;
constexpr std::size_t kHugepageBytes = 2 * kMiB;

class SuspendedTest : public testing::Test {
 protected:
  /// A counter on host A, suspended.
  void start(const Words& options = {}) {
    hosts_.emplace(options);
    empty_ = hosts_->use(Host::kA);
    empty_b_ = hosts_->use(Host::kB);
    counter_.emplace(start_counter(*hosts_, Host::kA, kSuspendedVram));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    running_ = hosts_->use(Host::kA);
    const CommandResult suspended = order({"suspend", pid()});
    ASSERT_EQ(suspended.exit_code, 0) << suspended.out << suspended.err;
    suspended_ = hosts_->use(Host::kA);
    ASSERT_EQ(suspended_.vram_bytes, empty_.vram_bytes);
  }

  std::string pid() const { return std::to_string(counter_->pid()); }
  std::string store() const { return hosts_->directory() + "/checkpoints"; }
  CommandResult order(const Words& words, Host host = Host::kA) const {
    return hosts_->order(host, words);
  }
  CommandResult checkpoint(const Words& options = {}) const {
    Words words{"checkpoint", pid(), store()};
    words.insert(words.end(), options.begin(), options.end());
    return order(words);
  }
  MigrateOutcome migrate(const Words& options = {}) const {
    return hosts_->migrate(Host::kA, counter_->pid(), options);
  }

  void arm(const std::string& fault, Host host = Host::kA) const {
    std::ofstream(hosts_->directory(host) + "/faults") << fault << "\n";
  }
  bool was_reached(Host host = Host::kA) const {
    return std::filesystem::exists(hosts_->directory(host) + "/faults.hit");
  }

  /// Of all migrations that are not finished on a host.
  Words states(Host host = Host::kA) const {
    Words states;
    const auto answer = hosts_->ask(host, "list");
    for (const auto& migration : answer.fields().at("migrations").list_value().values()) {
      states.push_back(migration.struct_value().fields().at("state").string_value());
    }
    return states;
  }

  /// Recovery may still have to complete it.
  bool reaches(const Words& wanted, Host host = Host::kA) const {
    return test::wait_until([&] { return states(host) == wanted; });
  }

  /// Of the only job that is suspended at a host. The worker that brought it there may still have
  /// to end.
  std::string pid_of_suspended(Host host) const {
    EXPECT_TRUE(reaches({"suspended"}, host));
    const auto answer = hosts_->ask(host, "list");
    const auto& migrations = answer.fields().at("migrations").list_value().values();
    if (migrations.size() != 1) return "";
    const double pid = migrations[0].struct_value().fields().at("pid").number_value();
    return std::to_string(static_cast<pid_t>(pid));
  }

  /// As before, and nothing is left of the attempt.
  void expect_suspended() const {
    EXPECT_TRUE(reaches({"suspended"}));
    EXPECT_TRUE(reaches({}, Host::kB));
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, suspended_), suspended_);
    EXPECT_EQ(hosts_->use_coming_to(Host::kB, empty_b_), empty_b_);
  }

  /// It is stopped at B, off its GPUs, and resumes there on request.
  void expect_arrived() {
    ASSERT_TRUE(reaches({"suspended"}, Host::kB));
    EXPECT_EQ(hosts_->use(Host::kB).vram_bytes, empty_b_.vram_bytes);
    expect_gone_from_a();
    expect_progress_at_b();
  }

  void expect_progress_at_b() {
    const CommandResult resumed = order({"resume", pid_of_suspended(Host::kB)}, Host::kB);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
    expect_answers(Host::kB);
    EXPECT_TRUE(reaches({}, Host::kB));
  }

  void expect_resumable() {
    expect_suspended();
    const CommandResult resumed = order({"resume", pid()});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
    expect_answers(Host::kA);
    EXPECT_TRUE(reaches({}));
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, running_), running_);
  }

  void expect_answers(Host host) const {
    EXPECT_EQ(ask_counter(*client_, *hosts_, host), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(*client_, *hosts_, host));
  }

  void expect_gone_from_a() {
    ASSERT_TRUE(counter_->program().wait(kPatience));
    EXPECT_TRUE(reaches({}));
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, empty_), empty_);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse empty_;
  HostUse empty_b_;
  HostUse running_;
  HostUse suspended_;
};

/// Changes a byte of the VRAM that the keeper holds: of its last file.
void corrupt_copy(pid_t keeper) {
  std::map<int, std::string> files;
  const std::string directory = "/proc/" + std::to_string(keeper) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string target = std::filesystem::read_symlink(entry.path());
    if (target.starts_with("/memfd:")) files[std::stoi(entry.path().filename())] = entry.path();
  }
  ASSERT_GE(files.size(), 2u);  // the description, and its content
  const UniqueFd file(::open(files.rbegin()->second.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  void* const at =
      ::mmap(nullptr, kHugepageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  *static_cast<std::byte*>(at) ^= std::byte{1};
  ::munmap(at, kHugepageBytes);
}

TEST_F(SuspendedTest, CheckpointLeavesItSuspendedAndResumable) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult taken = checkpoint();
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_THAT(taken.out, HasSubstr("checkpointed name="));
  expect_resumable();
}

TEST_F(SuspendedTest, ItsCheckpointCanBeRestored) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult taken = checkpoint({"--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  expect_gone_from_a();
  const CommandResult restored = order({"restore", store()}, Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
  expect_answers(Host::kB);
}

TEST_F(SuspendedTest, MovesSuspendedAndResumesThere) {
  ASSERT_NO_FATAL_FAILURE(start());
  const MigrateOutcome moved = migrate();
  ASSERT_TRUE(migrated(moved)) << moved.err;
  EXPECT_THAT(moved.out, HasSubstr(" is suspended at "));
  EXPECT_GE(moved.vram_bytes, kSuspendedVram);
  EXPECT_EQ(pid_of_suspended(Host::kB), std::to_string(moved.pid));
  expect_arrived();
}

TEST_F(SuspendedTest, CanMoveAgainWhileSuspended) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(migrated(migrate()));
  const pid_t there = std::stoi(pid_of_suspended(Host::kB));
  ASSERT_TRUE(migrated(hosts_->migrate(Host::kB, there)));
  EXPECT_TRUE(reaches({}, Host::kB));
  EXPECT_EQ(hosts_->use_coming_to(Host::kB, empty_b_), empty_b_);
  const CommandResult resumed = order({"resume", pid_of_suspended(Host::kA)});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  expect_answers(Host::kA);
}

TEST_F(SuspendedTest, CanBeCheckpointedAfterTheMove) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(migrated(migrate()));
  const CommandResult taken =
      order({"checkpoint", pid_of_suspended(Host::kB), store(), "--stop"}, Host::kB);
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_TRUE(reaches({}, Host::kB));
  const CommandResult restored = order({"restore", store()});
  ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
  expect_answers(Host::kA);
}

TEST_F(SuspendedTest, MovesToAFullGpuAndResumesOnceThereIsRoom) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1G"}));
  {
    const App other = start_stencil(*hosts_, Host::kB, 400 * kMiB, 20);
    ASSERT_TRUE(migrated(migrate()));
    const CommandResult refused = order({"resume", pid_of_suspended(Host::kB)}, Host::kB);
    EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("of VRAM free; "));
  }
  expect_arrived();
}

TEST_F(SuspendedTest, StaysSuspendedAfterTheMoveWithoutAnAgent) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(migrated(migrate()));
  hosts_->wait_until_idle(Host::kB);
  ASSERT_EQ(::kill(hosts_->agent_pid(Host::kB), SIGKILL), 0);
  hosts_->stop_agent(Host::kB);
  hosts_->start_agent(Host::kB);
  ASSERT_EQ(::kill(std::stoi(pid_of_suspended(Host::kB)), SIGCONT), 0);
  expect_arrived();
}

TEST_F(SuspendedTest, JobKilledAfterTheMoveLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(migrated(migrate()));
  ASSERT_EQ(::kill(std::stoi(pid_of_suspended(Host::kB)), SIGKILL), 0);
  EXPECT_TRUE(reaches({}, Host::kB));
  EXPECT_EQ(hosts_->use_coming_to(Host::kB, empty_b_), empty_b_);
}

TEST_F(SuspendedTest, CorruptKeptVramIsNotMovedOrStored) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::vector<pid_t> keepers = hosts_->keepers(Host::kA);
  ASSERT_EQ(keepers.size(), 1u);
  const auto owner = procfs::status_field(std::to_string(keepers[0]), "Uid");
  EXPECT_THAT(owner, testing::StartsWith("0"));
  ASSERT_NO_FATAL_FAILURE(corrupt_copy(keepers[0]));
  for (const std::string& said : {migrate().err, checkpoint().err}) {
    EXPECT_THAT(said, HasSubstr("is not what was in VRAM: the copy in host memory was changed"));
  }
  expect_suspended();
}

TEST_F(SuspendedTest, CorruptionInTransitIsFoundAndItStays) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm("destination.landing.corrupt corrupt", Host::kB);
  EXPECT_THAT(migrate().err, HasSubstr("differs from what was sent"));
  EXPECT_TRUE(was_reached(Host::kB));
  expect_resumable();
}

TEST_F(SuspendedTest, PreflightAcceptsIt) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult found = order({"preflight", hosts_->address(Host::kB), pid()});
  EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
  expect_suspended();
}

TEST_F(SuspendedTest, StaysSuspendedIfTheTargetRefuses) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string gpu = "GPU-00000000-0000-0000-0000-000000000001";
  const MigrateOutcome refused = migrate({"--device-map", gpu + "=" + gpu});
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("the job is suspended, as before"));
  expect_resumable();
}

TEST_F(SuspendedTest, StaysSuspendedIfTheTargetIsUnreachable) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->stop_agent(Host::kB);
  const MigrateOutcome refused = migrate();
  EXPECT_EQ(refused.exit_code, kUnreachableExit) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("the job is suspended, as before"));
  hosts_->start_agent(Host::kB);
  expect_resumable();
}

TEST_F(SuspendedTest, LossOfTheKeeperPreventsTheMove) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->wait_until_idle(Host::kA);
  hosts_->kill_keepers(Host::kA);
  for (const std::string& said : {migrate().err, checkpoint().err}) {
    EXPECT_THAT(said, HasSubstr("the VRAM of process " + pid() + " is lost"));
  }
  EXPECT_TRUE(reaches({"suspended"}));
}

TEST(SuspendedProgram, PrintsTheSameOutput) {
  TwoHosts hosts;
  const App undisturbed = start_stencil(hosts, Host::kB, 16 * kMiB, 20);
  const App app = start_stencil(hosts, Host::kA, 16 * kMiB, 20);
  ASSERT_TRUE(app.wait_for_lines(3));
  const std::string pid = std::to_string(app.pid());
  ASSERT_EQ(hosts.order(Host::kA, {"suspend", pid}).exit_code, 0);
  for (int i = 0; i < 2; ++i) {
    const CommandResult taken =
        hosts.order(Host::kA, {"checkpoint", pid, hosts.directory() + "/checkpoints"});
    ASSERT_EQ(taken.exit_code, 0) << taken.err;
  }
  const std::size_t lines = app.lines().size();
  ASSERT_EQ(hosts.order(Host::kA, {"resume", pid}).exit_code, 0);
  ASSERT_TRUE(app.wait_for_lines(lines + 3));
  ASSERT_EQ(hosts.order(Host::kA, {"suspend", pid}).exit_code, 0);
  const std::size_t before = app.lines().size();
  const MigrateOutcome moved = hosts.migrate(Host::kA, app.pid());
  ASSERT_TRUE(migrated(moved));
  EXPECT_EQ(app.lines().size(), before);
  ASSERT_EQ(hosts.order(Host::kB, {"resume", std::to_string(moved.pid)}).exit_code, 0);
  ASSERT_TRUE(app.wait_for_lines(before + 3));
  EXPECT_TRUE(printed_what_prints(app, undisturbed));
}

TEST(SuspendedRing, RanksThatShareVramMoveTogether) {
  TwoHosts hosts({"--gpus", "2"});
  const App app = hosts.start_app(
      Host::kA, {hosts.program_path("ring"), "--ranks", "2", "--gpus", "2", "--per-line", "6"});
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  EXPECT_GT(hosts.vram_used(Host::kA, 1), 0u);
  const std::string pid = std::to_string(app.pid());
  const CommandResult suspended = hosts.order(Host::kA, {"suspend", pid});
  ASSERT_EQ(suspended.exit_code, 0) << suspended.err;
  const std::size_t lines = app.lines().size();
  const MigrateOutcome moved = hosts.migrate(Host::kA, app.pid());
  ASSERT_TRUE(migrated(moved));
  EXPECT_EQ(hosts.vram_used(Host::kB, 0), 0u);
  const CommandResult resumed = hosts.order(Host::kB, {"resume", std::to_string(moved.pid)});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_GT(hosts.vram_used(Host::kB, 0), 0u);
  EXPECT_GT(hosts.vram_used(Host::kB, 1), 0u);
  ASSERT_TRUE(app.wait_for_lines(lines + 3)) << app.output();
  apps::RingLines expected(2, 6);
  for (const std::string& line : app.lines()) ASSERT_EQ(line, expected.next());
}

/// The state after a worker at the source has died, or a step has failed, at a point.
struct MoveTrouble {
  const char* point;
  bool moved;
};

void PrintTo(const MoveTrouble& trouble, std::ostream* out) { *out << trouble.point; }

std::string point_of(const testing::TestParamInfo<MoveTrouble>& info) {
  std::string name = info.param.point;
  std::erase_if(name, [](char letter) { return letter == '.' || letter == '-'; });
  return name;
}

class SuspendedMoveFault : public SuspendedTest, public testing::WithParamInterface<MoveTrouble> {
 protected:
  void expect_one_copy() {
    EXPECT_TRUE(was_reached());
    GetParam().moved ? expect_arrived() : expect_resumable();
  }
};

TEST_P(SuspendedMoveFault, DeadWorkerLeavesOneCopy) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " kill");
  const MigrateOutcome told = migrate();
  EXPECT_EQ(told.exit_code == 0, GetParam().moved) << told.err;
  EXPECT_THAT(told.err, testing::Not(HasSubstr("the process runs on")));
  if (GetParam().moved) {
    EXPECT_THAT(told.out, HasSubstr(" is suspended at "));
  }
  expect_one_copy();
}

TEST_P(SuspendedMoveFault, FailedStepLeavesOneCopy) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " error");
  const MigrateOutcome told = migrate();
  EXPECT_EQ(told.exit_code == 0, GetParam().moved) << told.err;
  if (!GetParam().moved) {
    EXPECT_THAT(told.err, HasSubstr("the job is suspended, as before"));
  }
  expect_one_copy();
}

INSTANTIATE_TEST_SUITE_P(
    At, SuspendedMoveFault,
    testing::Values(MoveTrouble{"source.preflighted", false}, MoveTrouble{"source.began", false},
                    MoveTrouble{"source.prepared", false}, MoveTrouble{"source.dumped", false},
                    MoveTrouble{"source.flushed", false}, MoveTrouble{"source.awaiting", false},
                    MoveTrouble{"source.voted", false}, MoveTrouble{"source.committed", true},
                    MoveTrouble{"source.confirmed", true}, MoveTrouble{"source.killed", true},
                    MoveTrouble{"source.suspension.ended", true}),
    point_of);

class SuspendedCheckpointFault : public SuspendedTest,
                                 public testing::WithParamInterface<const char*> {};

TEST_P(SuspendedCheckpointFault, DeadWorkerLeavesItSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam()) + " kill");
  const CommandResult told = checkpoint();
  EXPECT_NE(told.exit_code, 0);
  EXPECT_TRUE(was_reached()) << told.out << told.err;
  expect_resumable();
}

INSTANTIATE_TEST_SUITE_P(At, SuspendedCheckpointFault,
                         testing::Values("source.began", "source.dumped", "source.flushed",
                                         "source.recovery.resumed", "source.checkpoint.stored",
                                         "source.checkpoint.sealed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '.');
                           return name;
                         });

class SuspendedArrivalFault : public SuspendedTest,
                              public testing::WithParamInterface<MoveTrouble> {};

TEST_P(SuspendedArrivalFault, DeadDestinationWorkerLeavesOneCopy) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " kill", Host::kB);
  (void)migrate();  // once it is committed, the agents agree without the worker
  ASSERT_TRUE(hosts_->wait_until_idle(Host::kB));
  EXPECT_TRUE(was_reached(Host::kB));
  GetParam().moved ? expect_arrived() : expect_resumable();
}

INSTANTIATE_TEST_SUITE_P(At, SuspendedArrivalFault,
                         testing::Values(MoveTrouble{"destination.prepared", false},
                                         MoveTrouble{"destination.verified", false},
                                         MoveTrouble{"destination.attached", false},
                                         MoveTrouble{"destination.restored", false},
                                         MoveTrouble{"destination.told", true},
                                         MoveTrouble{"destination.committed", true},
                                         MoveTrouble{"destination.suspended", true},
                                         MoveTrouble{"destination.resumed", true},
                                         MoveTrouble{"destination.finished", true}),
                         point_of);

/// Holds the worker at a point until go_on().
class HeldTest : public SuspendedTest {
 protected:
  void migrate_until(const std::string& point) {
    arm(point + " run until [ -e " + flag() + " ]; do sleep 0.01; done");
    moved_ = std::async(std::launch::async, [this] { return migrate(); });
    while (!was_reached()) ASSERT_TRUE(is_moving());
  }
  bool is_moving() const {
    return moved_.wait_for(std::chrono::milliseconds(10)) == std::future_status::timeout;
  }
  void go_on() const { std::ofstream(flag()) << "go on\n"; }
  std::string flag() const { return hosts_->directory() + "/go-on"; }

  void expect_no_resume() const {
    const CommandResult refused = order({"resume", pid()});
    EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("is already being migrated, by migration"));
  }

  std::future<MigrateOutcome> moved_;
};

TEST_F(HeldTest, ResumeIsRefusedDuringAMove) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_NO_FATAL_FAILURE(migrate_until("source.flushed"));
  expect_no_resume();
  go_on();
  EXPECT_TRUE(migrated(moved_.get()));
  expect_arrived();
}

TEST_F(HeldTest, ResumeIsRefusedAfterTheCommit) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_NO_FATAL_FAILURE(migrate_until("source.committed"));
  hosts_->stop_agent(Host::kB);
  for (const pid_t worker : hosts_->workers(Host::kA)) ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_NE(moved_.get().exit_code, 0);
  EXPECT_THAT(states(), testing::UnorderedElementsAre("committed", "suspended"));
  expect_no_resume();
  go_on();
  hosts_->start_agent(Host::kB);
  expect_arrived();
}

}  // namespace
}  // namespace gcr::e2e

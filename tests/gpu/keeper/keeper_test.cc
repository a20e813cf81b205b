// gcr-keeper as the agent and its successors use it, also after the death of the process that
// started it.
#include "migrate-agent/gpu/keeper/keeper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "migrate-agent/gpu/keeper/layout.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::keeper {
namespace {

namespace fs = std::filesystem;

UniqueFd memory_with(std::uint64_t id) {
  UniqueFd memory(::memfd_create("buffer", MFD_CLOEXEC));
  const std::string content = "buffer " + std::to_string(id);
  EXPECT_EQ(::pwrite(memory.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return memory;
}

std::string content_of(const UniqueFd& memory) {
  char bytes[64];
  const ssize_t got = ::pread(memory.get(), bytes, sizeof(bytes), 0);
  return {bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

/// This many buffers, with ids that differ from their indices.
struct Buffers {
  explicit Buffers(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t id = 1000 + 7 * (count - i);
      owned.push_back(memory_with(id));
      list.push_back({{gpu::kRoot, id}, owned.back().get()});
    }
  }
  std::vector<UniqueFd> owned;
  std::vector<BufferDescriptor> list;
};

Keeper start() {
  auto keeper = Keeper::start(GCR_KEEPER_PATH);
  if (!keeper) throw std::runtime_error(keeper.error().message());
  return std::move(*keeper);
}

void expect_taken(const journal::ProcessId& keeper, const std::vector<BufferDescriptor>& buffers) {
  const auto taken = take_from(keeper);
  ASSERT_TRUE(taken) << taken.error().message();
  std::map<gpu::MemberId, std::size_t> next;
  for (const auto& [mapping, fd] : buffers) {
    const gpu::LocalDescriptors& of_member = taken->at(mapping.member);
    const auto& [id, descriptor] = of_member.at(next[mapping.member]++);
    EXPECT_EQ(id, mapping.local_id);
    EXPECT_EQ(content_of(descriptor), "buffer " + std::to_string(id));
  }
  ASSERT_EQ(taken->size(), next.size());
  for (const auto& [member, count] : next) EXPECT_EQ(taken->at(member).size(), count);
}

Code code_of_taking(const journal::ProcessId& keeper) {
  const auto taken = take_from(keeper);
  return taken ? Code::kInvalid : taken.error().code();
}

/// Blocks until the process has ended; it need not be a child.
void wait_for_end(const journal::ProcessId& id) {
  const auto process = procfs::Process::open(id.pid(), id.start_time());
  if (!process) return;
  EXPECT_TRUE(process->ends_within(std::chrono::seconds(10))) << "the keeper runs on";
}

/// A process that starts a keeper, runs more of the test with it, and is killed.
journal::ProcessId keeper_of_killed_worker(const std::function<void(Keeper&)>& work) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t worker = ::fork();
  if (worker == 0) {
    Keeper keeper = start();
    work(keeper);
    const std::string id = keeper.id().SerializeAsString();
    if (::write(ends[1], id.data(), id.size()) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char bytes[64];
  const ssize_t got = ::read(ends[0], bytes, sizeof(bytes));
  ::close(ends[0]);
  journal::ProcessId id;
  EXPECT_TRUE(got > 0 && id.ParseFromArray(bytes, static_cast<int>(got)));
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  return id;
}

std::vector<std::string> descriptors_of(pid_t pid) {
  std::vector<std::string> targets;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    const std::string target = fs::read_symlink(entry.path());  // "socket:[4711]"
    targets.push_back(entry.path().filename().string() + " " + target.substr(0, target.find('[')));
  }
  return targets;
}

int oom_score_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/oom_score_adj");
  int score = 0;
  file >> score;
  return score;
}

/// A child may lower the value only to this one: less needs CAP_SYS_RESOURCE.
int least_oom_score() {
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream("/proc/self/oom_score_adj") << "-1000";
    ::_exit(oom_score_of(::getpid()) == -1000 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? -1000 : oom_score_of(::getpid());
}

TEST(Keeper, GivesSuccessorEveryDescriptorAndKeepsItsOwn) {
  const Buffers buffers(3);
  Keeper keeper = start();
  ASSERT_TRUE(keeper.arm(buffers.list));
  expect_taken(keeper.id(), buffers.list);
  expect_taken(keeper.id(), buffers.list);
  ASSERT_TRUE(keeper.end());
}

TEST(Keeper, HoldsThousandsOfDescriptors) {
  const Buffers one(1);
  std::vector<BufferDescriptor> many(5000, one.list[0]);
  Keeper keeper = start();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit enough{std::max<rlim_t>(before.rlim_cur, 8192), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &enough), 0);
  const Status armed = keeper.arm(many);
  EXPECT_TRUE(armed) << armed.error().message();
  expect_taken(keeper.id(), many);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(keeper.end());
}

TEST(Keeper, GivesEachMemberWhatItMaps) {
  const UniqueFd shared = memory_with(7);
  const UniqueFd own = memory_with(5);
  const std::vector<BufferDescriptor> list{
      {{{1}, 7}, shared.get()}, {{gpu::kRoot, 7}, shared.get()}, {{{1}, 5}, own.get()}};
  Keeper keeper = start();
  ASSERT_TRUE(keeper.arm(list));
  expect_taken(keeper.id(), list);
  ASSERT_TRUE(keeper.end());
}

/// Armed as agents before protocol version 6 did it: without the members.
TEST(Keeper, OldTableWithoutMembersMeansOneProcess) {
  const std::uint64_t table[] = {layout::kMagic, 2, 1007, 1000};  // the second is the count
  const UniqueFd first = memory_with(1007);
  const UniqueFd second = memory_with(1000);
  const UniqueFd sealed(::memfd_create("gcr-keeper", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::pwrite(sealed.get(), table, sizeof(table), 0), static_cast<ssize_t>(sizeof(table)));
  ASSERT_EQ(
      ::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
      0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const int high = ::fcntl(sealed.get(), F_DUPFD_CLOEXEC, 100);
    const int buffers[] = {::fcntl(first.get(), F_DUPFD_CLOEXEC, 100),
                           ::fcntl(second.get(), F_DUPFD_CLOEXEC, 100)};
    const int ready = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 100);
    ::dup2(high, layout::kTableFd);
    ::dup2(buffers[0], layout::kFirstBufferFd);
    ::dup2(buffers[1], layout::kFirstBufferFd + 1);
    if (::write(ready, "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  journal::ProcessId id;
  id.set_pid(holder);
  id.set_start_time(procfs::read_stat(holder).value().start_time);
  expect_taken(id, {{{gpu::kRoot, 1007}, -1}, {{gpu::kRoot, 1000}, -1}});
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Keeper, AcceptsNoDescriptors) {
  Keeper keeper = start();
  ASSERT_TRUE(keeper.arm({}));
  expect_taken(keeper.id(), {});
  ASSERT_TRUE(keeper.end());
}

TEST(Keeper, StaysWhenTheWorkerDiesAfterArming) {
  const Buffers buffers(100);
  const journal::ProcessId id =
      keeper_of_killed_worker([&](Keeper& keeper) { (void)keeper.arm(buffers.list); });
  expect_taken(id, buffers.list);
  ASSERT_TRUE(end_keeper(id));
  EXPECT_EQ(code_of_taking(id), Code::kNotFound);
  EXPECT_TRUE(end_keeper(id)) << "a second call succeeds";
}

TEST(Keeper, EndsWhenTheWorkerDiesBeforeArming) {
  const journal::ProcessId id = keeper_of_killed_worker([](Keeper&) {});
  wait_for_end(id);
  EXPECT_EQ(code_of_taking(id), Code::kNotFound);
}

TEST(Keeper, OutlivesItsOwnerOnlyIfArmed) {
  const Buffers buffers(1);
  journal::ProcessId unarmed, armed;
  {
    Keeper first = start();
    Keeper second = start();
    ASSERT_TRUE(second.arm(buffers.list));
    unarmed = first.id();
    armed = second.id();
  }
  EXPECT_EQ(code_of_taking(unarmed), Code::kNotFound);
  expect_taken(armed, buffers.list);
  ASSERT_TRUE(end_keeper(armed));
  ::waitpid(armed.pid(), nullptr, 0);
}

TEST(Keeper, ArmingFailsWithoutFreeDescriptors) {
  const Buffers buffers(100);
  Keeper keeper = start();
  const rlimit little{50, 50};
  ASSERT_EQ(::prlimit(keeper.id().pid(), RLIMIT_NOFILE, &little, nullptr), 0);
  const Status armed = keeper.arm(buffers.list);
  ASSERT_FALSE(armed);
  EXPECT_EQ(armed.error().code(), Code::kResourceExhausted) << armed.error().message();
  EXPECT_EQ(code_of_taking(keeper.id()), Code::kNotFound);
}

TEST(Keeper, RefusesMoreBuffersThanItMayHold) {
  Keeper keeper = start();
  const std::vector<BufferDescriptor> many(kMaxBuffers + 1);
  const Status armed = keeper.arm(many);
  ASSERT_FALSE(armed);
  EXPECT_EQ(armed.error().code(), Code::kInvalidArgument);
}

TEST(Keeper, InheritsNothingAndIsTheLastOomVictim) {
  const UniqueFd inheritable(::open("/etc/passwd", O_RDONLY));
  Keeper keeper = start();
  const pid_t pid = keeper.id().pid();
  EXPECT_THAT(descriptors_of(pid),
              testing::UnorderedElementsAre("0 /dev/null", "1 /dev/null", "2 /dev/null",
                                            "3 socket:", "4 /dev/null"));
  EXPECT_EQ(::getsid(pid), pid);
  EXPECT_EQ(oom_score_of(pid), least_oom_score());
  EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(pid) + "/cwd"), "/");
}

TEST(Keeper, IgnoresTerminationSignals) {
  const Buffers buffers(1);
  Keeper keeper = start();
  ASSERT_TRUE(keeper.arm(buffers.list));
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::kill(keeper.id().pid(), number);
  expect_taken(keeper.id(), buffers.list);
  ASSERT_TRUE(keeper.end());
}

TEST(Keeper, FindRejectsOtherProcesses) {
  journal::ProcessId self;
  self.set_pid(::getpid());
  self.set_start_time(procfs::read_stat("self").value().start_time);
  EXPECT_EQ(code_of_taking(self), Code::kNotFound);
  Keeper keeper = start();
  EXPECT_EQ(code_of_taking(keeper.id()), Code::kNotFound) << "not armed";
  journal::ProcessId earlier = keeper.id();
  earlier.set_start_time(earlier.start_time() - 1);
  EXPECT_EQ(code_of_taking(earlier), Code::kNotFound);
  ASSERT_TRUE(end_keeper(earlier)) << "the first has ended; the process with its PID runs on";
  EXPECT_NE(procfs::state(std::to_string(keeper.id().pid())), 'Z');
}

TEST(Keeper, CannotBeStartedFromAMissingPath) {
  const auto keeper = Keeper::start("/no/such/keeper");
  ASSERT_FALSE(keeper);
  EXPECT_EQ(keeper.error().code(), Code::kNotFound) << keeper.error().message();
}

}  // namespace
}  // namespace gcr::keeper

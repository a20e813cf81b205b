// The jobs of a host, found without their roots.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/host_state.h"
#include "src/base/unique_fd.h"

namespace gcr::inventory {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

struct Level {
  bool under_library = true;
  std::function<void()> enter = [] {};  ///< in the process, before it starts the next one
};

/// A chain of idle processes, each the parent of the next.
class HostJobs : public testing::Test {
 protected:
  static constexpr std::size_t kMost = 16;
  struct Shared {
    std::atomic<int> ready;
    std::atomic<pid_t> pids[kMost];
  };

  HostJobs() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gcr-jobs-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    library_ = folder_ + "/libgcr-preload.so";
    std::ofstream(library_) << std::string(4096, 'x');
  }
  ~HostJobs() override {
    for (const pid_t pid : started_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  /// Their PIDs, from the top.
  std::vector<pid_t> start(const std::vector<Level>& levels) {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& shared = *new (memory) Shared{};
    const pid_t top = ::fork();
    if (top == 0) become(levels, shared);
    started_.push_back(top);
    while (shared.ready < static_cast<int>(levels.size())) {
      if (::waitpid(top, nullptr, WNOHANG) != 0) throw std::runtime_error("it has ended");
      std::this_thread::yield();
    }
    std::vector<pid_t> pids;
    for (std::size_t i = 0; i < levels.size(); ++i) pids.push_back(shared.pids[i]);
    return pids;
  }

  static FoundProcess user(pid_t pid, std::uint64_t vram_bytes = 0, bool has_reported = true) {
    FoundProcess found;
    found.process.set_pid(pid);
    found.process.set_start_time(procfs::read_stat(pid)->start_time);
    found.has_reported = has_reported;
    if (vram_bytes == 0) return found;
    proto::GpuUse& use = *found.process.add_gpus();
    use.set_uuid("one");
    use.set_vram_bytes(vram_bytes);
    return found;
  }

  static pid_t root_of(pid_t pid) {
    std::vector<FoundProcess> found{user(pid)};
    const auto all = jobs(found);
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all.at(0).job.pid(), found[0].process.job());
    return found[0].process.job();
  }

 private:
  /// The next process is started first: it inherits no mapping.
  [[noreturn]] void become(const std::vector<Level>& levels, Shared& shared) {
    const auto enter = [](const Level& level) {
      level.enter();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // which another user would lose
    };
    std::size_t at = 0;
    enter(levels[at]);
    while (at + 1 < levels.size() && ::fork() == 0) enter(levels[++at]);
    if (levels[at].under_library) {
      const int fd = ::open(library_.c_str(), O_RDONLY | O_CLOEXEC);
      (void)::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
      ::close(fd);
    }
    shared.pids[at] = ::getpid();
    ++shared.ready;
    for (;;) ::pause();
  }

  std::string folder_;
  std::string library_;
  std::vector<pid_t> started_;
};

TEST_F(HostJobs, RootIsTheTopmostProcessWithTheLibrary) {
  const auto pids = start({{.under_library = false}, {}, {}, {}});
  EXPECT_EQ(root_of(pids[3]), pids[1]);
  EXPECT_EQ(root_of(pids[1]), pids[1]);
}

TEST_F(HostJobs, ProcessesInBetweenNeedNoLibrary) {
  const auto pids = start({{}, {.under_library = false}, {}});
  EXPECT_EQ(root_of(pids[2]), pids[0]);
}

TEST_F(HostJobs, SessionsAndProcessGroupsDoNotSplitAJob) {
  const auto pids = start({{}, {.enter = [] { ::setsid(); }}});
  EXPECT_EQ(root_of(pids[1]), pids[0]);
}

TEST_F(HostJobs, AncestorWithATerminalIsNoMember) {
  const auto pids = start({{},
                           {.enter =
                                [] {
                                  ::setsid();
                                  const int terminal = ::posix_openpt(O_RDWR);
                                  ::grantpt(terminal);
                                  ::unlockpt(terminal);
                                  if (::open(::ptsname(terminal), O_RDWR) < 0) ::kill(0, SIGKILL);
                                }},
                           {.enter = [] { ::setsid(); }},
                           {}});
  ASSERT_NE(procfs::read_stat(pids[1])->terminal, 0);
  ASSERT_EQ(procfs::read_stat(pids[2])->terminal, 0);
  EXPECT_EQ(root_of(pids[3]), pids[2]);
}

TEST_F(HostJobs, AncestorInAnotherMountNamespaceIsNoMember) {
  const auto pids = start({{}, {.enter = [] { (void)!::unshare(CLONE_NEWNS); }}, {}});
  ASSERT_NE(procfs::namespace_link(pids[0], "mnt"), procfs::namespace_link(pids[1], "mnt"));
  EXPECT_EQ(root_of(pids[2]), pids[1]);
}

TEST_F(HostJobs, VramOfAllMembersIsAdded) {
  const auto pids = start({{}, {}, {.under_library = false}, {}});
  std::vector<FoundProcess> found{user(pids[1], 10), user(pids[3], 5)};
  const auto all = jobs(found);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].job.pid(), pids[0]);
  EXPECT_EQ(all[0].job.start_time(), procfs::read_stat(pids[0])->start_time);
  EXPECT_EQ(all[0].job.processes(), 4u);
  EXPECT_EQ(all[0].job.gpu_processes(), 2u);
  EXPECT_GT(all[0].job.resident_bytes(), 0u);
  ASSERT_EQ(all[0].job.gpus_size(), 1);
  EXPECT_EQ(all[0].job.gpus(0).vram_bytes(), 15u);
  EXPECT_THAT(all[0].members, UnorderedElementsAre(pids[0], pids[1], pids[2], pids[3]));
  EXPECT_THAT(all[0].owners, ElementsAre(::getuid()));
  EXPECT_TRUE(found[1].lineage.contains(pids[0]) && found[1].lineage.contains(pids[3]));
}

TEST_F(HostJobs, GpusAreListedOnlyIfAllMembersAnswered) {
  const auto pids = start({{}, {}});
  std::vector<FoundProcess> found{user(pids[0], 10), user(pids[1], 0, false)};
  const auto all = jobs(found);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].job.gpu_processes(), 2u);
  EXPECT_EQ(all[0].job.gpus_size(), 0);
}

TEST_F(HostJobs, OwnersOfAllMembersAreListed) {
  constexpr uid_t kUnprivileged = 65'534;
  const auto pids = start({{}, {.enter = [] { (void)!::setuid(kUnprivileged); }}});
  std::vector<FoundProcess> found{user(pids[0])};
  EXPECT_THAT(jobs(found).at(0).owners, ElementsAre(::getuid(), kUnprivileged));
}

TEST_F(HostJobs, ZombiesAreNotCounted) {
  const auto pids = start({{}, {}});
  ::kill(pids[1], SIGKILL);
  while (procfs::state(std::to_string(pids[1])) != 'Z') std::this_thread::yield();
  std::vector<FoundProcess> found{user(pids[0])};
  EXPECT_EQ(jobs(found).at(0).job.processes(), 1u);
}

TEST_F(HostJobs, EndedProcessesHaveNone) {
  const auto pids = start({{}, {}});
  std::vector<FoundProcess> found{user(pids[0]), user(pids[1])};
  found.push_back(user(pids[0]));
  found.back().process.set_start_time(1);  // its number is reused now
  ::kill(pids[1], SIGKILL);
  while (procfs::state(std::to_string(pids[1])) != 'Z') std::this_thread::yield();
  const auto all = jobs(found);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].job.gpu_processes(), 1u);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].process.pid(), pids[0]);
}

TEST_F(HostJobs, JobsAreInTheOrderOfTheirRoots) {
  const auto one = start({{}});
  const auto two = start({{}});
  std::vector<FoundProcess> found{user(two[0]), user(one[0])};
  const auto all = jobs(found);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_LT(all[0].job.pid(), all[1].job.pid());
}

}  // namespace
}  // namespace gcr::inventory

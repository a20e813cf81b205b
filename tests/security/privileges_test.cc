// The privileges of the agent's processes: exactly those of the table.
#include "migrate-agent/daemon/main/privileges.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

std::uint64_t set_of(pid_t pid, const char* name) {
  return std::stoull(procfs::status_field(std::to_string(pid), name), nullptr, 16);
}

std::uint64_t kept_by(Part part) {
  std::uint64_t bits = 0;
  for (const KeptCapability& capability : kept_capabilities(part)) {
    bits |= std::uint64_t{1} << capability.number;
  }
  return bits & set_of(::getpid(), "CapPrm");
}

/// Whether a root process without capabilities may read the memory of `pid`.
bool is_open_to_root(pid_t pid) {
  const pid_t child = ::fork();
  if (child == 0) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (::syscall(SYS_capset, &header, none) != 0) ::_exit(2);
    const std::string path = "/proc/" + std::to_string(pid) + "/environ";
    ::_exit(::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
  return WEXITSTATUS(status) == 1;
}

class PrivilegesTest : public testing::Test {
 protected:
  static void expect_only(pid_t pid, Part part) {
    EXPECT_EQ(set_of(pid, "CapEff"), kept_by(part));
    EXPECT_EQ(set_of(pid, "CapPrm"), kept_by(part));
    EXPECT_EQ(set_of(pid, "CapInh"), 0U);
    EXPECT_EQ(set_of(pid, "CapAmb"), 0U);
    EXPECT_EQ(set_of(pid, "CapBnd"), set_of(::getpid(), "CapBnd")) << "what CRIU can set";
  }

  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_};
};

TEST_F(PrivilegesTest, DaemonHoldsNone) {
  EXPECT_TRUE(kept_capabilities(Part::kDaemon).empty());
  expect_only(agent_.pid(), Part::kDaemon);
}

TEST_F(PrivilegesTest, WorkerHoldsThoseOfTheTable) {
  const Client waiting(agent_, credentials_, "operator");
  expect_only(agent_.number_in_log("serves", "worker "), Part::kWorker);
}

TEST_F(PrivilegesTest, EveryCapabilityHasAReason) {
  for (const KeptCapability& capability : kept_capabilities(Part::kWorker)) {
    EXPECT_THAT(std::string(capability.name), testing::StartsWith("CAP_"));
    EXPECT_FALSE(capability.reason.empty()) << capability.name;
  }
}

TEST_F(PrivilegesTest, DaemonIsNotDumpable) {
  const Sleeper ordinary([] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (::syscall(SYS_capset, &header, none) != 0) ::_exit(2);
  });
  EXPECT_TRUE(is_open_to_root(ordinary.pid()));
  // The same permission controls core dumps (prctl(2), PR_SET_DUMPABLE).
  EXPECT_FALSE(is_open_to_root(agent_.pid()));
}

}  // namespace
}  // namespace gcr::daemon::test

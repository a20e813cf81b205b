// Limits of control groups move with the process, and its group is removed when the process has
// ended.
#include "migrate-agent/linux/cgroups/limits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>

#include "migrate-agent/linux/cgroups/group.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMemory = 2 * kGiB;

class GroupLimits : public testing::Test {
 protected:
  GroupLimits() {
    limits_.set_memory_bytes(kMemory);
    limits_.set_processes(200);
    limits_.set_cpu_quota_us(900'000);
    limits_.set_cpu_period_us(1'000'000);
    for (const char* path : {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"}) {
      proto::Device& device = *limits_.mutable_devices()->add_allowed();
      device.set_path(path);
      device.set_read(true);
      device.set_write(true);
    }
  }
  ~GroupLimits() override {
    if (hosts_) ::kill(counter_->pid(), SIGKILL);
    client_.reset();
    counter_.reset();
    hosts_.reset();
    EXPECT_TRUE(group_.destroy());
  }

  /// A counter in a group that limits it.
  void start(const std::vector<std::string>& options) {
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, 16 * kMiB));
    client_.emplace(hosts_->variable("NS", Host::kA));
    const Status created = group_.create(limits_);
    ASSERT_TRUE(created) << created.error().message();
    const auto entries = group_.entries();
    ASSERT_TRUE(entries);
    const std::string pid = std::to_string(counter_->pid());
    for (const UniqueFd& entry : *entries) {
      ASSERT_EQ(::write(entry.get(), pid.data(), pid.size()), static_cast<ssize_t>(pid.size()));
    }
    ASSERT_NO_FATAL_FAILURE(expect_limits(counter_->pid()));
  }

  void expect_limits(pid_t pid) const {
    const auto now = cgroups::limits_of(cgroups::hierarchies(), pid);
    ASSERT_TRUE(now) << now.error().message();
    google::protobuf::util::MessageDifferencer differencer;
    differencer.set_repeated_field_comparison(google::protobuf::util::MessageDifferencer::AS_SET);
    EXPECT_TRUE(differencer.Compare(*now, limits_)) << now->DebugString();
  }

  /// Groups of migrations to this host.
  std::vector<std::string> groups(Host host) const {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(hosts_->variable("STATE", host) + "/journal", error)) {
      const std::string name = cgroups::kGroupPrefix + entry.path().filename().string();
      for (const cgroups::Hierarchy& hierarchy : cgroups::hierarchies()) {
        if (fs::exists(hierarchy.mount / name, error)) found.push_back(hierarchy.mount / name);
      }
    }
    return found;
  }

  bool wait_until_no_groups(Host host) const {
    for (int i = 0; i < 6000 && !groups(host).empty(); ++i) ::poll(nullptr, 0, 10);
    return groups(host).empty();
  }

  proto::GroupLimits limits_;
  cgroups::Group group_{cgroups::hierarchies(), fmt::format("gcr-limits-e2e-{}", ::getpid())};
  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
};

TEST_F(GroupLimits, MoveWithTheProcess) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  const MigrateOutcome there = hosts_->migrate(Host::kA, counter_->pid());
  ASSERT_TRUE(migrated(there));
  expect_limits(there.pid);
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kB), kCounterFirst);
  EXPECT_FALSE(groups(Host::kB).empty());
  EXPECT_TRUE(wait_until_no_groups(Host::kA));

  const MigrateOutcome back = hosts_->migrate(Host::kB, there.pid);
  ASSERT_TRUE(migrated(back));
  expect_limits(back.pid);
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_TRUE(wait_until_no_groups(Host::kB)) << testing::PrintToString(groups(Host::kB));

  ASSERT_EQ(::kill(back.pid, SIGKILL), 0);
  EXPECT_TRUE(wait_until_no_groups(Host::kA)) << testing::PrintToString(groups(Host::kA));
}

/// The destination sees only the controllers that it needs itself.
TEST_F(GroupLimits, UnsupportedOnesAreABlocker) {
  std::string hide = "true";
  for (const cgroups::Hierarchy& hierarchy : cgroups::hierarchies()) {
    if (!hierarchy.has(cgroups::kFreezer)) hide += "; umount " + hierarchy.mount.string();
  }
  const auto pids = cgroups::find(cgroups::hierarchies(), "pids");
  ASSERT_TRUE(pids);
  // With everything in one hierarchy it does not exist at all.
  if (pids->has(cgroups::kFreezer))
    hide = "umount -l /sys/fs/cgroup; sed -i '1i allow_unfrozen = true' $1/agent.toml";
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", hide}));
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, testing::HasSubstr("cgroup-limits"));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
  expect_limits(counter_->pid());
}

}  // namespace
}  // namespace gcr::e2e

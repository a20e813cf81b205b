// The limits of a process at the source, read from real groups and applied to others; the kernel
// enforces them there.
#include "migrate-agent/linux/cgroups/limits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>

#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/linux/cgroups/support.h"
#include "tests/support/sysfs_tree.h"

namespace gcr::cgroups {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint64_t kMemory = 64 << 20;

/// Groups two levels deep at the source, and the group that the agent at the destination creates.
class Limits : public testing::Test {
 protected:
  void TearDown() override {
    sleeper_.reset();
    EXPECT_TRUE(group_.destroy());
    for (auto directory = made_.rbegin(); directory != made_.rend(); ++directory) {
      while (::rmdir(directory->c_str()) != 0 && errno == EBUSY) ::usleep(1000);
    }
  }

  static Hierarchy with(std::string_view controller) {
    auto found = find(hierarchies(), controller);
    if (!found) throw std::runtime_error(found.error().message());
    return *found;
  }

  /// A group `depth` levels below the top, with the controller.
  fs::path make(std::string_view controller, int depth = 1) {
    const Hierarchy hierarchy = with(controller);
    fs::path group = hierarchy.mount;
    for (int i = 0; i < depth; ++i) {
      if (hierarchy.version == Version::kTwo && controller != "devices")
        std::ofstream(group / "cgroup.subtree_control") << "+" << controller;
      group /= fmt::format("gcr-limits-test-{}", ::getpid());
      if (::mkdir(group.c_str(), 0755) == 0) made_.push_back(group);
    }
    return group;
  }

  static const char* either(std::string_view controller, const char* one, const char* two) {
    return with(controller).version == Version::kOne ? one : two;
  }

  static void put(const fs::path& file, const std::string& text) {
    const Status written = write(file, text);
    ASSERT_TRUE(written) << written.error().message();
  }

  void join(const fs::path& group) { put(group / "cgroup.procs", std::to_string(sleeper_->pid())); }

  proto::GroupLimits limits() {
    auto read = limits_of(hierarchies(), sleeper_->pid());
    if (!read) throw std::runtime_error(read.error().message());
    return *read;
  }

  /// The result of `body` in a process that has joined the group before.
  int in_group(const std::function<int()>& body) {
    const auto entries = group_.entries();
    EXPECT_TRUE(entries);
    const pid_t child = ::fork();
    if (child == 0) {
      for (const UniqueFd& entry : *entries) {
        if (::write(entry.get(), "0", 1) != 1) ::_exit(255);
      }
      ::_exit(body());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::optional<Sleeper> sleeper_{std::in_place};
  Group group_{hierarchies(), fmt::format("gcr-limits-test-{}-destination", ::getpid())};
  std::vector<fs::path> made_;
};

int allocate(std::uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  std::memset(memory, 1, bytes);
  return 0;
}

TEST_F(Limits, LeastLimitOfAllAncestorsCounts) {
  const fs::path below = make("memory", 2);
  const char* file = either("memory", "memory.limit_in_bytes", "memory.max");
  put(below.parent_path() / file, std::to_string(kMemory));
  join(below);
  EXPECT_EQ(limits().memory_bytes(), kMemory);
  put(below / file, std::to_string(kMemory / 2));
  EXPECT_EQ(limits().memory_bytes(), kMemory / 2);
}

TEST_F(Limits, SmallestCpuShareCounts) {
  const fs::path below = make("cpu", 2);
  const auto limit = [&](const fs::path& group, int quota, int period) {
    if (with("cpu").version == Version::kTwo)
      return put(group / "cpu.max", fmt::format("{} {}", quota, period));
    put(group / "cpu.cfs_period_us", std::to_string(period));
    put(group / "cpu.cfs_quota_us", std::to_string(quota));
  };
  limit(below.parent_path(), 50'000, 100'000);
  limit(below, 20'000, 50'000);
  join(below);
  EXPECT_EQ(limits().cpu_quota_us(), 20'000u);
  EXPECT_EQ(limits().cpu_period_us(), 50'000u);
}

TEST_F(Limits, AreEmptyUnlessSet) {
  // In a group of its own at the top, below which a machine for tests sets no limit.
  ASSERT_TRUE(group_.create());
  const auto process = procfs::Process::open(sleeper_->pid());
  ASSERT_TRUE(group_.add(*process));
  EXPECT_EQ(describe(limits()), "");
  EXPECT_THAT(unsupported_limits(hierarchies(), limits()), IsEmpty());
}

TEST_F(Limits, AreCopiedToTheNewGroup) {
  proto::GroupLimits wanted;
  wanted.set_memory_bytes(kMemory);
  wanted.set_processes(7);
  wanted.set_cpu_quota_us(30'000);
  wanted.set_cpu_period_us(60'000);
  ASSERT_THAT(unsupported_limits(hierarchies(), wanted), IsEmpty());
  const Status created = group_.create(wanted);
  ASSERT_TRUE(created) << created.error().message();
  const auto entries = group_.entries();
  ASSERT_TRUE(entries);
  for (const UniqueFd& entry : *entries) {
    const std::string pid = std::to_string(sleeper_->pid());
    ASSERT_EQ(::write(entry.get(), pid.data(), pid.size()), static_cast<ssize_t>(pid.size()));
  }
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(limits(), wanted))
      << describe(limits());
}

TEST_F(Limits, MemoryLimitIsEnforced) {
  proto::GroupLimits wanted;
  wanted.set_memory_bytes(kMemory);
  wanted.set_swap_bytes(0);
  ASSERT_TRUE(group_.create(wanted));
  EXPECT_EQ(in_group([] { return allocate(kMemory / 4); }), 0);
  EXPECT_EQ(in_group([] { return allocate(2 * kMemory); }), 128 + SIGKILL);
}

TEST_F(Limits, ProcessLimitIsEnforced) {
  proto::GroupLimits wanted;
  wanted.set_processes(3);
  ASSERT_TRUE(group_.create(wanted));
  const int forked = in_group([] {
    for (int i = 0; i < 10; ++i) {
      const pid_t child = ::fork();
      if (child < 0) return errno == EAGAIN ? i : 100;
      if (child == 0) ::pause();
    }
    return 10;
  });
  EXPECT_EQ(forked, 2);
}

TEST_F(Limits, CpuSetIsEnforced) {
  proto::GroupLimits wanted;
  wanted.set_cpus("0");
  const Status created = group_.create(wanted);
  ASSERT_TRUE(created) << created.error().message();
  EXPECT_EQ(
      in_group([] { return procfs::status_field("self", "Cpus_allowed_list") == "0" ? 0 : 1; }), 0);
}

TEST_F(Limits, UnsupportedLimitsAreRefused) {
  proto::GroupLimits wanted;
  wanted.set_cpus("0-9000");
  EXPECT_THAT(unsupported_limits(hierarchies(), wanted), SizeIs(1));
  wanted.set_cpus("0-99999999999");
  EXPECT_THAT(unsupported_limits(hierarchies(), wanted), SizeIs(1));
  wanted.clear_cpus();
  wanted.set_processes(7);
  EXPECT_THAT(unsupported_limits(hierarchies(), wanted), IsEmpty());
  EXPECT_THAT(unsupported_limits({}, wanted), testing::ElementsAre(HasSubstr("pids")));
}

/// The devices of every host, with their allowed uses.
int use_of_devices() {
  const bool null = ::access("/dev/null", R_OK | W_OK) == 0;
  const bool zero_read = ::open("/dev/zero", O_RDONLY | O_CLOEXEC) >= 0;
  const bool zero_write = ::open("/dev/zero", O_WRONLY | O_CLOEXEC) >= 0;
  const bool kernel = ::access("/dev/kmsg", R_OK) == 0;
  return (null ? 1 : 0) + (zero_read ? 2 : 0) + (zero_write ? 4 : 0) + (kernel ? 8 : 0);
}

void allow(proto::DeviceLimits& limits, const char* path, bool may_write) {
  proto::Device& device = *limits.add_allowed();
  device.set_path(path);
  device.set_read(true);
  device.set_write(may_write);
}

/// Devices of one hierarchy: version 1 has rules, version 2 a program.
class Devices : public Limits, public testing::WithParamInterface<Hierarchy> {
 protected:
  Devices() { group_ = Group({GetParam()}, fmt::format("gcr-devices-test-{}", ::getpid())); }
};

TEST_P(Devices, OnlyAllowedDevicesCanBeOpened) {
  proto::GroupLimits wanted;
  allow(*wanted.mutable_devices(), "/dev/null", true);
  allow(*wanted.mutable_devices(), "/dev/zero", false);
  allow(*wanted.mutable_devices(), "/dev/gcr-is-not-there", true);
  ASSERT_EQ(use_of_devices(), 15);
  const Status created = group_.create(wanted);
  ASSERT_TRUE(created) << created.error().message();
  EXPECT_EQ(in_group(use_of_devices), 1 + 2);
}

TEST_P(Devices, AllowedDevicesAreReadFromTheGroup) {
  EXPECT_FALSE(limits().has_devices()) << describe(limits());
  proto::GroupLimits wanted;
  allow(*wanted.mutable_devices(), "/dev/null", true);
  allow(*wanted.mutable_devices(), "/dev/zero", false);
  ASSERT_TRUE(group_.create(wanted));
  join(GetParam().mount / fmt::format("gcr-devices-test-{}", ::getpid()));
  const proto::GroupLimits read = limits();
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_repeated_field_comparison(google::protobuf::util::MessageDifferencer::AS_SET);
  EXPECT_TRUE(differencer.Compare(read, wanted)) << read.DebugString();
}

TEST_P(Devices, GpusAreHiddenByTheRootAndTheGroupsOfAProcess) {
  const SysfsTree root;
  ASSERT_TRUE(fs::create_directory(root.path() / "dev"));
  const auto make_node = [&](const char* name, dev_t numbers) {
    return ::mknod((root.path() / "dev" / name).c_str(), S_IFCHR | 0600, numbers) == 0;
  };
  ASSERT_TRUE(make_node("null", ::makedev(1, 3)) && make_node("zero", ::makedev(1, 5)) &&
              make_node("random", ::makedev(1, 9)));
  const auto gpu = [](char name) { return to_uuid(std::string(sizeof(Uuid::bytes), name)); };
  const std::map<Uuid, std::string> nodes{{gpu('n'), "/dev/null"},
                                          {gpu('z'), "/dev/zero"},
                                          {gpu('f'), "/dev/full"},
                                          {gpu('r'), "/dev/random"}};
  sleeper_.emplace(root.path());
  const auto unlimited = hidden_gpus(hierarchies(), sleeper_->pid(), nodes);
  ASSERT_TRUE(unlimited) << unlimited.error().message();
  EXPECT_THAT(*unlimited, testing::UnorderedElementsAre(gpu('f'), gpu('r')))
      << "/dev/full is not there, and /dev/random has other numbers";

  proto::GroupLimits wanted;
  allow(*wanted.mutable_devices(), "/dev/null", true);
  allow(*wanted.mutable_devices(), "/dev/zero", false);
  allow(*wanted.mutable_devices(), "/dev/full", true);
  ASSERT_TRUE(group_.create(wanted));
  join(GetParam().mount / fmt::format("gcr-devices-test-{}", ::getpid()));
  const auto limited = hidden_gpus(hierarchies(), sleeper_->pid(), nodes);
  ASSERT_TRUE(limited) << limited.error().message();
  EXPECT_THAT(*limited, testing::UnorderedElementsAre(gpu('f'), gpu('r'), gpu('z')));
}

INSTANTIATE_TEST_SUITE_P(Version, Devices, testing::ValuesIn(all_with("devices")),
                         [](const auto& info) {
                           return fmt::format("{}", static_cast<int>(info.param.version));
                         });

/// Runs in a child with its own mounts: a sysfs with two AMD GPUs, one without an identifier, and a
/// /dev.
bool lists_amd_gpus(const fs::path& sysfs) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(sysfs.c_str(), "/sys", nullptr, MS_BIND, nullptr) != 0 ||
      ::mount("none", "/dev", "tmpfs", 0, nullptr) != 0) {
    return false;
  }
  fs::create_directory("/dev/dri");
  for (const char* node : {"/dev/dri/renderD128", "/dev/dri/renderD129"}) {
    if (::mknod(node, S_IFCHR | 0600, ::makedev(1, 3)) != 0) return false;
  }
  const auto named = [](const proto::DeviceLimits& limits, const std::string& name) {
    return std::ranges::any_of(limits.allowed(), [&](const proto::Device& device) {
      return (device.gpu_uuid() == name || device.path() == name) && device.read();
    });
  };
  const std::string uuid = "7cf529dea4b33bad";
  const auto others = devices_without({to_uuid(uuid)});
  const auto none = devices_without({to_uuid("0000000000000000")});
  return others && !none && others->allowed_size() == 1 && named(*others, "/dev/dri/renderD129");
}

TEST(Devices, AmdGpusAreNamedByUniqueIdAndCanBeLeftOut) {
  const SysfsTree tree;
  tree.write("class/drm/renderD128/device/unique_id", "7cf529dea4b33bad\n");
  tree.write("class/drm/renderD129/device/unique_id", "0\n");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(lists_amd_gpus(tree.path()) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gcr::cgroups

// Checkpoints on file systems of every kind: whole on each, and a disk that fails or is full harms
// neither the job nor earlier checkpoints.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "src/base/units.h"
#include "tests/e2e/checkpoints.h"
#include "tests/support/test_disk.h"

namespace gcr::e2e {
namespace {

using testing::Values;

/// A file system that is unmounted with its object.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Where that host sees it.
  virtual std::string at(Host host) const = 0;
  /// Leaves this much room; a write that needs more fails with ENOSPC.
  virtual void leave(std::uint64_t bytes) = 0;
};

/// One that the kernel mounts, in one place for both hosts.
class Mounted : public FileSystem {
 public:
  Mounted(std::string path, const std::vector<std::string>& options) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    std::vector<std::string> words{"mount"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back(path_);
    const CommandResult mounted = run(words, kPatience);
    EXPECT_EQ(mounted.exit_code, 0) << mounted.err;
  }
  ~Mounted() override { ::umount2(path_.c_str(), MNT_DETACH); }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

  std::string at(Host) const override { return path_; }

  void leave(std::uint64_t bytes) override {
    const UniqueFd filler(
        ::open((path_ + "/filler").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(filler);
    ASSERT_EQ(::syncfs(filler.get()), 0);  // the written data has its blocks then
    struct statvfs now {};
    ASSERT_EQ(::fstatvfs(filler.get(), &now), 0);
    const std::uint64_t free_bytes = now.f_bavail * now.f_frsize;
    ASSERT_GT(free_bytes, bytes);
    ASSERT_EQ(::posix_fallocate(filler.get(), 0, static_cast<off_t>(free_bytes - bytes)), 0);
  }

 private:
  const std::string path_;
};

/// A disk that behaves as NFS does; each host is a separate client.
class NetworkDisk : public FileSystem {
 public:
  explicit NetworkDisk(const std::string& path)
      : at_a_(disk, path + "-a", kNature), at_b_(disk, path + "-b", kNature) {}

  std::string at(Host host) const override { return (host == Host::kA ? at_a_ : at_b_).path(); }
  void leave(std::uint64_t bytes) override { disk.leave(bytes); }

  test::Disk disk;

 private:
  static constexpr test::Nature kNature{.is_network = true};
  test::Mount at_a_, at_b_;
};

std::unique_ptr<FileSystem> make_file_system(const std::string& type, const std::string& path) {
  if (type == "network") return std::make_unique<NetworkDisk>(path);
  if (type == "tmpfs") {
    return std::make_unique<Mounted>(
        path, std::vector<std::string>{"-t", "tmpfs", "-o", "size=512M", "store"});
  }
  const std::string image = path + ".image";
  const CommandResult made = run({"mkfs." + type, "-q", "-F", "-m", "0", image, "512M"}, kPatience);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return std::make_unique<Mounted>(path, std::vector<std::string>{"-o", "loop", image});
}

/// A counter with checkpoints there: "first" before its first answer, "second" after it.
class OnFileSystem : public CheckpointTest {
 protected:
  void use(std::unique_ptr<FileSystem> file_system) { file_system_ = std::move(file_system); }
  std::string volume() const { return hosts_.directory() + "/volume"; }
  std::string store_at(Host host) const override { return file_system_->at(host) + "/store"; }

  void take_two(App& counter) {
    const CommandResult first = checkpoint(counter.pid(), {"--name", "first"});
    ASSERT_EQ(first.exit_code, 0) << first.err;
    EXPECT_GE(number(last_line(first), "stored_bytes"), 16 * kMiB);
    expect_answer(kCounterFirst);
    const CommandResult second = checkpoint(counter.pid(), {"--name", "second"});
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_LT(number(last_line(second), "stored_bytes"), 8 * kMiB);
    expect_good();
  }

  /// The job runs on.
  void expect_answer(int answer) const {
    const UdpClient client(hosts_.variable("NS", Host::kA));
    EXPECT_EQ(ask_counter(client, hosts_, Host::kA), answer);
    EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  }

  /// A checkpoint that cannot be written, with that reason.
  void expect_failure(const App& counter, const std::string& reason) const {
    const CommandResult failed = checkpoint(counter.pid(), {"--name", "third"});
    EXPECT_EQ(failed.exit_code, kFailedExit) << failed.out << failed.err;
    EXPECT_NE(failed.err.find(reason), std::string::npos) << failed.err;
  }

  void expect_two_whole() const {
    expect_good();
    expect_counter(Host::kB, {"first"}, kCounterFirst);
    expect_counter(Host::kA, {"second"}, kCounterFirst + 1);
  }

  std::unique_ptr<FileSystem> file_system_;
};

class OnEachFileSystem : public OnFileSystem, public testing::WithParamInterface<const char*> {};

TEST_P(OnEachFileSystem, CheckpointsAreWholeAndSurviveAFullDisk) {
  use(make_file_system(GetParam(), volume()));
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  take_two(counter);
  const std::vector<std::string> before = files();
  file_system_->leave(128 * kKiB);
  expect_failure(counter, "No space left");
  EXPECT_EQ(files(), before);
  expect_answer(kCounterFirst + 1);
  end(counter);
  expect_two_whole();
}

INSTANTIATE_TEST_SUITE_P(, OnEachFileSystem, Values("network", "ext4", "tmpfs"),
                         [](const auto& info) { return info.param; });

/// How a disk fails in the middle of a checkpoint.
struct Fault {
  const char* name;
  void (*begin)(test::Disk& disk);
  const char* reason;
};

class OnFailingDisk : public OnFileSystem, public testing::WithParamInterface<Fault> {};

TEST_P(OnFailingDisk, JobRunsOnAndEarlierCheckpointsAreWhole) {
  auto network = std::make_unique<NetworkDisk>(volume());
  test::Disk& disk = network->disk;
  use(std::move(network));
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  take_two(counter);
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));  // all its files are closed then
  GetParam().begin(disk);
  expect_failure(counter, GetParam().reason);
  disk.restart(test::Loss::kNothing);
  disk.leave(1 * kGiB);
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  expect_answer(kCounterFirst + 1);
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"first.checkpoint", "second.checkpoint"}));
  ASSERT_EQ(checkpoint(counter.pid(), {"--name", "third"}).exit_code, 0);
  end(counter);
  expect_two_whole();
  expect_counter(Host::kB, {"third"}, kCounterFirst + 2);
}

INSTANTIATE_TEST_SUITE_P(
    , OnFailingDisk,
    Values(Fault{"TheWrite", [](test::Disk& disk) { disk.leave(64 * kKiB, EIO); },
                 "Input/output error"},
           Fault{"TheSyncs", [](test::Disk& disk) { disk.fail_syncs(EIO); }, "Input/output error"},
           Fault{"TheSyncsOfAFullDisk", [](test::Disk& disk) { disk.fail_syncs(ENOSPC); },
                 "No space left"}),
    [](const auto& info) { return info.param.name; });

TEST_F(OnFileSystem, FileSystemWithoutWritesIsRefused) {
  use(std::make_unique<Mounted>(volume(), std::vector<std::string>{"-t", "hugetlbfs", "store"}));
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  const CommandResult refused = checkpoint(counter.pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.err;
  EXPECT_NE(refused.err.find("is on a hugetlbfs"), std::string::npos) << refused.err;
  const CommandResult asked =
      hosts_.order(Host::kA, {"preflight", std::to_string(counter.pid()), "--checkpoint", store()});
  EXPECT_EQ(asked.exit_code, kRefusedExit) << asked.out << asked.err;
  EXPECT_FALSE(std::filesystem::exists(store()));
  expect_answer(kCounterFirst);
}

}  // namespace
}  // namespace gcr::e2e

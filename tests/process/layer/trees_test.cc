// What of a container's mounts is its own.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/process/layer/fixture.h"
#include "tests/support/ready_child.h"

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class TreesOfAContainer : public TwoContainers {
 protected:
  Result<Trees> trees_with(const ContainerOptions& options) {
    source_ = std::make_unique<Container>(image_, machine_.path() / "one", options);
    return trees_of(source_->init());
  }

  static std::vector<std::string> points(const Trees& trees) {
    std::vector<std::string> points;
    for (const Tree& tree : trees.trees) points.push_back(tree.point);
    return points;
  }

  static std::vector<std::string> volumes(const Trees& trees) {
    std::vector<std::string> points;
    for (const Volume& volume : trees.volumes) {
      points.push_back(volume.point + " " + volume.type + (volume.read_only ? " ro" : ""));
    }
    return points;
  }

  static ino_t inode_of(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  }
};

TEST_F(TreesOfAContainer, RootIsFoundWithItsUpperDirectory) {
  const auto trees = trees_with({});
  ASSERT_TRUE(trees) << trees.error().message();
  ASSERT_THAT(points(*trees), ElementsAre("/"));
  EXPECT_EQ(procfs::id_of(trees->trees[0].upper).second, inode_of(source_->upper()));
  EXPECT_EQ(trees->trees[0].overlay_prefix, "trusted.overlay.");
  EXPECT_THAT(trees->volumes, IsEmpty());
}

TEST_F(TreesOfAContainer, StrangeNameOfUpperDirectoryIsFound) {
  ContainerOptions options;
  options.name_of_upper = "up, per:=\\ \n\t#";
  const auto trees = trees_with(options);
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_EQ(procfs::id_of(trees->trees.at(0).upper).second, inode_of(source_->upper()));
}

TEST_F(TreesOfAContainer, AttributesOfUsersAreThoseOfAnOverlayOfUsers) {
  ContainerOptions options;
  options.overlay = ",userxattr";
  const auto trees = trees_with(options);
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_EQ(trees->trees.at(0).overlay_prefix, "user.overlay.");
}

TEST_F(TreesOfAContainer, OwnTmpfsIsATreeAndOtherMountsAreVolumes) {
  const fs::path volume = machine_.path() / "volume";
  fs::create_directory(volume);
  std::ofstream(machine_.path() / "resolv.conf") << "nameserver ::1\n";
  mount_at(machine_.path() / "shared memory", "tmpfs", "", "shm");
  mount_at(machine_.path() / "other", "tmpfs", "", "tmpfs");
  ContainerOptions options;
  options.mount = [&](const fs::path& root) {
    mount_at(root / "tmp", "tmpfs");
    mount_at(root / "a b", "tmpfs");
    mount_at(root / "run", "tmpfs");
    mount_at(root / "hidden", "tmpfs");
    mount_at(root / "hidden", "tmpfs", "size=1M");
    mount_at(root / "ro", "tmpfs", "ro");
    mount_at(root / "dev", "tmpfs");
    mount_at(root / "dev/shm", "tmpfs");
    ::umount((root / "dev/shm").c_str());
    bind_at(root / "dev/shm", machine_.path() / "shared memory");
    mount_at(root / "dev/other", "tmpfs");
    mount_at(root / "proc", "proc");
    mount_at(root / "proc/acpi", "tmpfs");
    bind_at(root / "etc/resolv.conf", machine_.path() / "resolv.conf");
    bind_at(root / "data", volume);
    fs::create_directory(root / "run/part");
    fs::create_directory(root / "part");
    bind_at(root / "part", root / "run/part");
    fs::create_directory(root / "of the host");
    bind_at(root / "of the host", machine_.path() / "other");
  };
  const auto trees = trees_with(options);
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_THAT(points(*trees), ElementsAre("/", "/a b", "/dev/shm", "/hidden", "/run", "/tmp"));
  EXPECT_THAT(volumes(*trees),
              testing::UnorderedElementsAre("/data tmpfs", "/etc/resolv.conf tmpfs", "/ro tmpfs ro",
                                            "/part tmpfs", "/of the host tmpfs"));
  const Tree* const hidden = find(*trees, "/hidden");
  EXPECT_FALSE(hidden->is_overlay());
  EXPECT_EQ(procfs::id_of(hidden->view).second, inode_of(source_->root() / "hidden"));
  EXPECT_EQ(find(*trees, "/data"), nullptr);
}

TEST_F(TreesOfAContainer, TmpfsIsFoundAfterItsDirectoryWasRenamed) {
  ContainerOptions options;
  options.mount = [&](const fs::path& root) { mount_at(root / "a/b", "tmpfs"); };
  source_ = std::make_unique<Container>(image_, machine_.path() / "one", options);
  source_->run("mv a c; ln -s c a");
  const auto trees = trees_of(source_->init());
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_THAT(points(*trees), ElementsAre("/", "/c/b"));
}

TEST_F(TreesOfAContainer, ReadOnlyRootIsNoTree) {
  ContainerOptions options;
  options.is_read_only = true;
  options.mount = [](const fs::path& root) { mount_at(root / "tmp", "tmpfs"); };
  const auto trees = trees_with(options);
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_THAT(points(*trees), ElementsAre("/tmp"));
}

TEST_F(TreesOfAContainer, RootOfAnotherTypeIsRefusedByName) {
  source_ = std::make_unique<Container>(image_, ContainerOptions());
  const auto trees = trees_of(source_->init());
  ASSERT_FALSE(trees);
  EXPECT_EQ(trees.error().code(), Code::kUnsupported);
  EXPECT_THAT(trees.error().message(), HasSubstr("tmpfs"));
}

// Such a job has the files of its host, and mounts that the host may have unmounted since.
TEST_F(TreesOfAContainer, RootOfTheHostHasNoTrees) {
  start();
  const fs::path since = machine_.path() / "since";
  const pid_t child = gcr::test::fork_ready([&] {
    return ::unshare(CLONE_NEWNS) == 0 && fs::create_directory(since) &&
           ::mount("tmpfs", since.c_str(), "tmpfs", 0, nullptr) == 0;
  });
  const auto trees = trees_of(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(trees) << trees.error().message();
  EXPECT_THAT(trees->trees, IsEmpty());
  EXPECT_THAT(volumes(*trees), testing::Contains(since.string() + " tmpfs"));
}

TEST_F(TreesOfAContainer, ProcessWithoutARootOfItsOwnIsRefused) {
  start();
  const pid_t child = gcr::test::fork_ready(
      [this] { return ::chroot((source_->root() / "usr").c_str()) == 0 && ::chdir("/") == 0; });
  EXPECT_FALSE(trees_of(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(trees_of(child)) << "it is gone";
}

using HostileTrees = TreesOfAContainer;

TEST_F(HostileTrees, OverlayThatTheHostHasNotMountedIsRefused) {
  const fs::path home = machine_.path() / "own";
  fs::create_directories(home / "work");
  fs::create_directories(home / "merged");
  fs::create_directories(home / "etc");
  ContainerOptions options;
  options.mount = [&](const fs::path& root) {
    // Names a directory of the host as its upper directory.
    mount_at(root, "overlay",
             "lowerdir=" + image_.string() + ",upperdir=" + (home / "etc").string() +
                 ",workdir=" + (home / "work").string());
  };
  source_ = std::make_unique<Container>(home / "merged", options);
  const auto trees = trees_of(source_->init());
  ASSERT_FALSE(trees);
  EXPECT_THAT(trees.error().message(), HasSubstr("not mounted on this host"));
}

TEST_F(HostileTrees, OtherDirectoryWithTheNameOfTheUpperOneIsRefused) {
  start();
  fs::rename(source_->upper(), machine_.path() / "moved");
  fs::create_directory(source_->upper());
  EXPECT_FALSE(trees_of(source_->init()));
  fs::remove(source_->upper());
  EXPECT_FALSE(trees_of(source_->init()));
}

}  // namespace
}  // namespace gcr::layer::test

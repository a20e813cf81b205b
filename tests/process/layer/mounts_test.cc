// Mount points of both containers, and the trees of tmpfs.
#include <fstream>
#include <set>

#include "tests/process/layer/fixture.h"

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class ContainersMounts : public TwoContainers {
 protected:
  ContainersMounts() {
    fs::create_directory(volume_);
    std::ofstream(volume_ / "precious") << "volume";
    std::ofstream(file_) << "nameserver\n";
  }

  ContainerOptions with_mounts() const {
    ContainerOptions options;
    options.mount = [this](const fs::path& root) {
      bind_at(root / "etc/resolv.conf", file_);
      bind_at(root / "data", volume_);
      mount_at(root / "run", "tmpfs");
      fs::create_directory(root / "run/volume");
      bind_at(root / "run/volume", volume_);
    };
    return options;
  }

  void expect_mounts_are_left() const {
    EXPECT_EQ(read(at_destination("etc/resolv.conf")), "nameserver\n");
    EXPECT_EQ(read(at_destination("data/precious")), "volume");
    EXPECT_EQ(read(at_destination("run/volume/precious")), "volume");
    EXPECT_EQ(read(file_), "nameserver\n");
    EXPECT_THAT(std::vector<fs::path>(fs::directory_iterator(volume_), {}),
                ElementsAre(volume_ / "precious"));
  }

  const fs::path volume_ = machine_.path() / "volume";
  const fs::path file_ = machine_.path() / "resolv.conf";
};

TEST_F(ContainersMounts, MountPointsOfBothEndsAreLeftAlone) {
  start(with_mounts(), with_mounts());
  source_->run("echo > etc/new; echo > run/x");
  const auto carried = carry();
  ASSERT_TRUE(carried) << carried.error().message();
  expect_same();
  expect_mounts_are_left();
  EXPECT_FALSE(fs::exists(at_destination("run/x"))) << "another tree";
}

TEST_F(ContainersMounts, MountPointsAreNeitherReplacedNorFilled) {
  start({}, with_mounts());
  source_->run("echo changed > etc/resolv.conf; echo > data/new; chmod 700 data; mkdir -p run/a/b");
  const auto carried = carry();
  ASSERT_TRUE(carried) << carried.error().message();
  EXPECT_THAT(carried->list(),
              testing::UnorderedElementsAre(HasSubstr("/etc/resolv.conf is a mount"),
                                            HasSubstr("/data"), HasSubstr("/run")));
  expect_mounts_are_left();
}

TEST_F(ContainersMounts, MountPointsAreNotRemoved) {
  start({}, with_mounts());
  source_->run("rm -r etc data run usr");
  const auto carried = carry();
  ASSERT_TRUE(carried) << carried.error().message();
  expect_mounts_are_left();
  EXPECT_FALSE(fs::exists(at_destination("etc/passwd")));
  EXPECT_FALSE(fs::exists(at_destination("usr")));
}

TEST_F(ContainersMounts, DirectoryThatIsMadeAgainKeepsMountPoints) {
  start({}, with_mounts());
  source_->run("rm -r etc; mkdir etc; echo > etc/new");
  ASSERT_TRUE(carry());
  expect_mounts_are_left();
  EXPECT_THAT(std::set<fs::path>(fs::directory_iterator(at_destination("etc")), {}),
              ElementsAre(at_destination("etc/new"), at_destination("etc/resolv.conf")));
}

TEST_F(ContainersMounts, DirectoryWithAMountPointIsNotReplacedByAFile) {
  start({}, with_mounts());
  source_->run("rm -r etc; echo > etc");
  const auto carried = carry();
  ASSERT_FALSE(carried);
  EXPECT_THAT(carried.error().message(), HasSubstr("/etc: a mount point"));
  expect_mounts_are_left();
}

TEST_F(ContainersMounts, TmpfsIsATreeOfItsOwn) {
  start(with_mounts(), with_mounts());
  destination_->run(
      "mkdir -p run/left/over; echo > run/left/over/x; touch -d 2001-01-01 run/volume");
  ASSERT_NO_FATAL_FAILURE(use_tree("/run"));
  source_->run(
      "cd run; mkdir a; echo 1 > a/1; ln a/1 2; mkfifo p; ln -s / l; chmod 1711 .;"
      "printf a | dd of=s bs=1 seek=100M status=none");
  set("run/a/1", "user.x", "y");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("cd run; mv a b; rm 2; chmod 600 p; rm -r l; mkdir l; echo > l/x");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("cd run; rm -r b s; mkdir s; echo > s/x");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  expect_mounts_are_left();
}

}  // namespace
}  // namespace gcr::layer::test

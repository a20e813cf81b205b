// A store on a disk that tests can break.
#pragma once

#include <unistd.h>

#include <optional>

#include "tests/store/support.h"
#include "tests/support/test_disk.h"

namespace gcr::store::test {

class OnTestDisk : public Store {
 protected:
  /// The owner of the disk's root, and of the store.
  explicit OnTestDisk(const Owner& owner = this_user()) : disk_(owner.uid, owner.gid) {
    owner_ = owner;
  }

  void SetUp() override {
    if (::geteuid() != 0 || ::access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "only root can mount, and needs /dev/fuse";
    }
    mount({});
  }

  void mount(const gcr::test::Nature& nature) {
    mount_.reset();
    mount_.emplace(disk_, folder_.path() / "disk", nature);
    path_ = mount_->path() / "store";
  }

  /// Success if the writer reports the checkpoint as complete.
  Status write(const std::string& name, const Chunks& chunks, const Uuid& checkpoint) const {
    GCR_ASSIGN(auto made, Directory::create(path_, owner_));
    Writer::Options wanted = options(name);
    wanted.checkpoint = checkpoint;
    GCR_ASSIGN(const auto writing, Writer::create(std::move(made), wanted));
    GCR_ASSIGN(const auto manifest, describe(*writing, chunks));
    GCR_TRY(writing->seal(manifest));
    return writing->publish();
  }

  gcr::test::Disk disk_;
  std::optional<gcr::test::Mount> mount_;
};

}  // namespace gcr::store::test

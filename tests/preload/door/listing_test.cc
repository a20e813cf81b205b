// The state that a host reads at the doors of its processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/host_state.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

/// As a host with `gpus` lists `subject`.
std::optional<inventory::FoundProcess> listed(const Subject& subject,
                                              const std::vector<proto::Gpu>& gpus = {}) {
  const auto all = inventory::processes(gpus);
  const auto found = std::ranges::find(
      all, subject.pid(), [](const inventory::FoundProcess& one) { return one.process.pid(); });
  if (found == all.end()) return std::nullopt;
  return *found;
}

/// The GPU of the first allocation of `subject`.
proto::Gpu gpu_of(const Subject& subject) {
  gpu::Door door = door_of(subject);
  proto::Gpu gpu;
  gpu.set_uuid(to_bytes(good(door.allocations()).at(0).gpu));
  return gpu;
}

class ListingTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    subject_.ask("primary 0");
    subject_.ask(command("alloc", 4 * kMiB));
  }
  Subject subject_;
};

TEST_F(ListingTest, ProcessBelongsToTheHostOfItsGpu) {
  const auto found = listed(subject_, {gpu_of(subject_)});
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->in_use);
  ASSERT_THAT(found->process.gpus(), SizeIs(1));
  EXPECT_EQ(found->process.gpus(0).vram_bytes(), 4 * kMiB);
  EXPECT_FALSE(listed(subject_)) << "on a host without GPUs";
}

/// Their doors would be opened while their agents use them.
TEST_F(ListingTest, OtherTestsProcessesAreNotListed) {
  if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) GTEST_SKIP() << "this one is on a whole host";
  EXPECT_EQ(::getppid(), 1);
  EXPECT_THAT(procfs::processes(), UnorderedElementsAre(1, ::getpid(), subject_.pid()));
}

TEST_F(ListingTest, ProcessWithABusyDoorIsListedByNetwork) {
  gpu::Door door = door_of(subject_);
  const auto found = listed(subject_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->in_use);
  EXPECT_THAT(found->process.gpus(), IsEmpty());
}

TEST_F(ListingTest, DetachedProcessHasNoVramOnItsGpu) {
  Held held;
  {
    gpu::Door door = door_of(subject_);
    held = take_over(door);
    good(quiesce(door, kLong, kNoLease));
    good(door.detach());
  }
  const auto found = listed(subject_, {gpu_of(subject_)});
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->in_use);
  EXPECT_THAT(found->process.gpus(), IsEmpty());

  gpu::Door door = door_of(subject_);
  good(door.attach(std::move(held)));
  good(door.resume());
}

}  // namespace
}  // namespace gcr::test

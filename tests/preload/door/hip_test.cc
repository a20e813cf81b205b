// Peculiarities of HIP, and CUDA and HIP in one process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <optional>

#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kBytes = 4 * kMiB;

Held duplicates_of(const Held& held) {
  Held copies;
  for (const auto& [id, descriptor] : held) {
    copies.emplace_back(id, UniqueFd(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)));
  }
  return copies;
}

/// A process that has memory of both, and uses HIP from now on.
class BothRuntimesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) GTEST_SKIP() << "no HIP there";
    subject_.ask("init");
    subject_.ask("primary 0");
    of_cuda_ = allocate(1);
    subject_.ask("use_hip");
    of_hip_ = allocate(2);
  }
  std::uint64_t allocate(std::uint64_t value) {
    const std::uint64_t address = subject_.value(command("alloc", kBytes));
    subject_.ask(command("fill", address, kBytes, value));
    return address;
  }
  std::uint64_t sum(std::uint64_t address) {
    return subject_.value(command("sum", address, kBytes));
  }
  /// The memory of both, asked through HIP's functions and through CUDA's.
  std::vector<std::uint64_t> sums() {
    subject_.ask("use_hip");
    std::vector<std::uint64_t> both = {sum(of_hip_)};
    subject_.ask("use_cuda");
    both.push_back(sum(of_cuda_));
    return both;
  }

  Subject subject_;
  std::uint64_t of_cuda_ = 0;
  std::uint64_t of_hip_ = 0;
};

TEST_F(BothRuntimesTest, DoorListsTheMemoryOfBoth) {
  gpu::Door door = door_of(subject_);
  const auto entries = good(door.inventory());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_LT(entries[0].id, entries[1].id);
  EXPECT_EQ(entries[0].device_uuid[0], 0x0b);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(entries[1].device_uuid), 16),
            "0b3e52a100000001");
  const door::Summary summary = good(door.hello());
  EXPECT_EQ(summary.allocations, 2u);
  EXPECT_EQ(summary.tracked_bytes, 2 * kBytes);
}

TEST_F(BothRuntimesTest, MemoryOfBothIsDetachedAndAttached) {
  const auto before = sums();
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 3; ++cycle) detach_and_attach(door);
  EXPECT_EQ(sums(), before);
}

TEST_F(BothRuntimesTest, BlockerOfOneBlocksBoth) {
  const auto before = sums();
  subject_.ask("use_hip");
  subject_.ask("managed 4096");
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).blockers, door::kManagedMemory);
  const Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  EXPECT_FALSE(door.detach());
  EXPECT_EQ(good(door.hello()).detached, 0u);
  good(door.resume());
  EXPECT_EQ(sums(), before);
}

TEST_F(BothRuntimesTest, FailedAttachOfOneLeavesBothDetached) {
  const auto before = sums();
  gpu::Door door = door_of(subject_);
  const Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  for (const std::size_t wrong : {0, 1}) {
    Held offered = duplicates_of(held);
    offered[wrong].second.reset(::eventfd(0, EFD_CLOEXEC));
    EXPECT_FALSE(door.attach(std::move(offered)));
    EXPECT_EQ(good(door.hello()).detached, 1u);
  }
  good(door.attach(duplicates_of(held)));
  good(door.resume());
  EXPECT_EQ(sums(), before);
}

TEST_F(BothRuntimesTest, GateWaitsForTheWorkOfBoth) {
  const std::uint64_t stream = subject_.value("stream");
  subject_.ask(command("stall", stream));
  gpu::Door door = door_of(subject_);
  EXPECT_FALSE(quiesce(door, std::chrono::milliseconds(50), kNoLease));
  good(door.resume());
  subject_.ask("go_on");
  good(quiesce(door, kLong, kNoLease));
  good(door.resume());
}

class HipTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) GTEST_SKIP() << "no HIP there";
  }
  void use_hip(const std::string& release) {
    Subject::Options options;
    options.environment = {{"SUBJECT_USES_HIP", "1"}, {"SOFTHIP_RELEASE", release}};
    subject_.emplace(options);
  }
  std::string last_error() { return subject_->answer("last_error"); }

  std::optional<Subject> subject_;
};

TEST_F(HipTest, DoorStartsWithTheFirstHipCall) {
  use_hip("6.2");
  const std::uint64_t address = subject_->value(command("alloc", kBytes));
  subject_->ask(command("fill", address, kBytes, 1));
  gpu::Door door = door_of(*subject_);
  EXPECT_EQ(good(door.hello()).allocations, 1u);
  detach_and_attach(door);
}

TEST_F(HipTest, NothingIsBackedBefore53) {
  use_hip("5.2");
  const std::uint64_t address = subject_->value(command("alloc", kBytes));
  subject_->ask(command("fill", address, kBytes, 1));
  gpu::Door door = door_of(*subject_);
  EXPECT_EQ(good(door.hello()).allocations, 0u);
  EXPECT_EQ(good(door.hello()).untracked_bytes, kBytes);
  subject_->ask(command("free", address));
  EXPECT_EQ(good(door.hello()).untracked_bytes, 0u);
}

TEST_F(HipTest, LastErrorsAreThoseOfTheApplication) {
  for (const std::string release : {"6.2", "7.1"}) {
    SCOPED_TRACE(release);
    use_hip(release);
    const std::uint64_t address = subject_->value(command("alloc", kBytes));
    EXPECT_EQ(last_error(), "ok");
    // The library's own refusal, which HIP never sees.
    EXPECT_EQ(subject_->answer(command("free", address + 512)), "error 1");
    EXPECT_EQ(last_error(), "error 1");
    EXPECT_EQ(last_error(), "ok");
    // A successful call clears an error up to 6.x, and keeps it from 7.0 on.
    EXPECT_EQ(subject_->answer(command("free", address + 512)), "error 1");
    subject_->value(command("alloc", kBytes));
    EXPECT_EQ(last_error(), release == "6.2" ? "ok" : "error 1");
    subject_->ask(command("free", address));
    EXPECT_EQ(last_error(), "ok");
  }
}

TEST_F(HipTest, HandleOfAnApplicationsMappingIsRefused) {
  use_hip("6.2");
  const std::uint64_t handle = subject_->value(command("create", kBytes, 0, 1));
  const std::uint64_t address = subject_->value(command("reserve", kBytes));
  subject_->ask(command("map", address, kBytes, 0, handle));
  subject_->ask(command("access", address, kBytes, 0, 3));
  EXPECT_EQ(subject_->answer(command("ipc_get", address)).substr(0, 7), "error 1");
}

}  // namespace
}  // namespace gcr::test

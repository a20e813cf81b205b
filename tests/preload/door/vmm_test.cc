// The application's own virtual memory management, tracked transparently.
#include <gtest/gtest.h>

#include "migrate-agent/gpu/allocations/lister.h"
#include "preload/cuda/abi/driver_abi.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kBytes = 4 * kMiB;

class VmmTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    subject_.ask("primary 0");
  }
  void map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, std::uint64_t handle) {
    subject_.ask(command("map", address, bytes, offset, handle));
    subject_.ask(command("access", address, bytes, 0, 3));
  }
  std::uint64_t sum(std::uint64_t address) {
    return subject_.value(command("sum", address, 2 * kMiB));
  }

  Subject subject_;
};

TEST_F(VmmTest, AllocationsKeepTheirMappingsAndHandles) {
  const std::uint64_t handle = subject_.value(command("create", kBytes, 0, 0));
  const std::uint64_t whole = subject_.value(command("reserve", kBytes));
  const std::uint64_t second = subject_.value(command("reserve", kBytes));
  map(whole, kBytes, 0, handle);
  subject_.ask(command("fill", whole, kBytes, 1));
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 3; ++cycle) detach_and_attach(door);
  // The same handle, after its memory was detached and attached.
  map(second, kBytes, 0, handle);
  EXPECT_EQ(sum(second), sum(whole));
  detach_and_attach(door);
  subject_.ask(command("fill", second, 2 * kMiB, 9));
  EXPECT_EQ(sum(second), sum(whole));
  EXPECT_NE(sum(whole), sum(whole + 2 * kMiB));
}

TEST_F(VmmTest, AllocationLivesUntilItsLastReference) {
  const std::uint64_t before = subject_.ask("info").at(0);
  const std::uint64_t handle = subject_.value(command("create", kBytes, 0, 0));
  const std::uint64_t address = subject_.value(command("reserve", kBytes));
  map(address, kBytes, 0, handle);
  subject_.ask(command("release", handle));
  EXPECT_EQ(subject_.answer(command("release", handle)), "error 1");
  subject_.ask(command("fill", address, kBytes, 1));
  gpu::Door door = door_of(subject_);
  const auto entries = good(door.inventory());
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].flags, door::kMappedByApplication);
  detach_and_attach(door);
  const std::uint64_t again = subject_.value(command("retain", address));
  subject_.ask(command("unmap", address, kBytes));
  EXPECT_EQ(good(door.inventory()).size(), 1u);
  subject_.ask(command("release", again));
  EXPECT_TRUE(good(door.inventory()).empty());
  subject_.ask(command("unreserve", address, kBytes));
  EXPECT_EQ(subject_.ask("info").at(0), before);
}

TEST_F(VmmTest, PropertiesAreTheRequestedOnes) {
  for (const int types : {0, 1}) {
    const std::uint64_t handle = subject_.value(command("create", kBytes, 0, types));
    EXPECT_EQ(subject_.ask(command("properties", handle)),
              (std::vector<std::uint64_t>{static_cast<std::uint64_t>(types), 0}));
    const std::uint64_t address = subject_.value(command("reserve", kBytes));
    subject_.ask(command("map", address, kBytes, 0, handle));
    subject_.ask(command("access", address, kBytes, 0, 3));
    EXPECT_EQ(subject_.value(
                  command("attribute", address, int{CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES})),
              static_cast<std::uint64_t>(types));
  }
}

TEST_F(VmmTest, ExportNeedsTheRequestedHandleType) {
  const std::uint64_t handle = subject_.value(command("create", kBytes, 0, 0));
  EXPECT_EQ(subject_.answer(command("export", handle)), "error 1");
}

TEST_F(VmmTest, ExportedAndImportedMemoryStaysOne) {
  const std::uint64_t handle = subject_.value(command("create", kBytes, 0, 1));
  const std::uint64_t own = subject_.value(command("reserve", kBytes));
  map(own, kBytes, 0, handle);
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.inventory()).at(0).flags & door::kShared, 0u);
  const std::uint64_t fd = subject_.value(command("export", handle));
  const std::uint64_t imported = subject_.value(command("import", fd));
  auto inventory = good(door.inventory());
  ASSERT_EQ(inventory.size(), 2u);
  EXPECT_EQ(inventory[1].size_bytes, 0u) << "only a mapping reveals it";
  const std::uint64_t other = subject_.value(command("reserve", kBytes));
  map(other, kBytes, 0, imported);
  inventory = good(door.inventory());
  EXPECT_EQ(inventory[1].size_bytes, kBytes);
  for (const door::DoorEntry& entry : inventory) EXPECT_NE(entry.flags & door::kShared, 0u);
  EXPECT_EQ(good(door.hello()).blockers, 0u);

  gpu::SameMemory same;
  Held held = take_over(door);
  for (const auto& [id, descriptor] : held) EXPECT_EQ(good(same.number(descriptor.get())), 1u);
  subject_.ask(command("fill", own, kBytes, 7));
  const std::uint64_t expected = sum(own);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  good(door.attach(std::move(held)));
  good(door.resume());
  EXPECT_EQ(sum(other), expected);
  subject_.ask(command("fill", other, kBytes, 9));
  EXPECT_EQ(sum(own), sum(other));
  EXPECT_NE(sum(own), expected);

  subject_.ask(command("release", imported));
  subject_.ask(command("release", handle));
  subject_.ask(command("unmap", own, kBytes));
  EXPECT_EQ(good(door.inventory()).size(), 1u);
  subject_.ask(command("unmap", other, kBytes));
  EXPECT_TRUE(good(door.inventory()).empty());
}

TEST_F(VmmTest, VirtualMemoryCallsRefuseBackedMemory) {
  const std::uint64_t address = subject_.value(command("alloc", kBytes));
  EXPECT_EQ(subject_.answer(command("retain", address)), "error 1");
  EXPECT_EQ(subject_.answer(command("unmap", address, kBytes)), "error 1");
  EXPECT_EQ(subject_.answer(command("access", address, kBytes, 0, 1)), "error 1");
  EXPECT_EQ(subject_.answer(command("unreserve", address, kBytes)), "error 1");
  subject_.ask(command("fill", address, kBytes, 1));
}

TEST_F(VmmTest, ReadOnlyMappingsStayReadOnly) {
  const std::uint64_t handle = subject_.value(command("create", kBytes, 0, 0));
  const std::uint64_t address = subject_.value(command("reserve", kBytes));
  map(address, kBytes, 0, handle);
  subject_.ask(command("fill", address, kBytes, 1));
  subject_.ask(command("access", address, kBytes, 0, 1));
  const std::uint64_t expected = sum(address);
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  EXPECT_EQ(sum(address), expected);
  EXPECT_EQ(subject_.value(command("attribute", address, int{CU_POINTER_ATTRIBUTE_ACCESS_FLAGS})),
            1u);
}

}  // namespace
}  // namespace gcr::test

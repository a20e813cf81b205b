// The inventory's bookkeeping, without a driver.
#include "preload/memory/inventory.h"

#include <gtest/gtest.h>

namespace gcr::preload {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr Address kBase = 0x7f00'0000'0000;

TEST(InventoryTest, FindsAMappingByEveryInnerAddress) {
  Inventory inventory(0);
  Physical& physical = inventory.add_physical(1, 4 * kMiB, 0, Origin::kLibrary);
  inventory.add_mapping(kBase, 4 * kMiB, 0, physical);
  EXPECT_EQ(inventory.find_mapping(kBase - 1), nullptr);
  EXPECT_NE(inventory.find_mapping(kBase), nullptr);
  EXPECT_NE(inventory.find_mapping(kBase + 4 * kMiB - 1), nullptr);
  EXPECT_EQ(inventory.find_mapping(kBase + 4 * kMiB), nullptr);
}

TEST(InventoryTest, PlainAllocationEndsAtTheRequestedSize) {
  Inventory inventory(0);
  inventory.add_plain(kBase, 3 * kMiB);
  EXPECT_EQ(inventory.find_plain(kBase - 1), nullptr);
  EXPECT_NE(inventory.find_plain(kBase + 3 * kMiB - 1), nullptr);
  EXPECT_EQ(inventory.find_plain(kBase + 3 * kMiB), nullptr);
}

TEST(InventoryTest, MappingListsItsPlainAllocations) {
  Inventory inventory(0);
  Physical& physical = inventory.add_physical(1, 4 * kMiB, 0, Origin::kLibrary);
  const Mapping& mapping = inventory.add_mapping(kBase, 4 * kMiB, 0, physical);
  inventory.add_plain(kBase - 512, 512);
  inventory.add_plain(kBase + 4 * kMiB, 512);
  EXPECT_FALSE(inventory.has_plains(mapping));
  const auto first = inventory.add_plain(kBase + 4 * kMiB - 512, 512).buffer_id;
  EXPECT_TRUE(inventory.has_plains(mapping));
  inventory.remove_plains(mapping);
  EXPECT_FALSE(inventory.has_plains(mapping));
  EXPECT_NE(inventory.find_plain(kBase - 1), nullptr);
  EXPECT_NE(inventory.find_plain(kBase + 4 * kMiB), nullptr);
  EXPECT_NE(inventory.add_plain(kBase, 512).buffer_id, first);
}

TEST(InventoryTest, IdsAreNeverReused) {
  Inventory inventory(0);
  Physical& first = inventory.add_physical(1, kMiB, 0, Origin::kLibrary);
  const std::uint64_t id = first.id;
  inventory.remove_physical(first);
  EXPECT_NE(inventory.add_physical(2, kMiB, 0, Origin::kLibrary).id, id);
}

TEST(InventoryTest, IdsContainTheRuntime) {
  Inventory first(0), second(1);
  const Physical& of_first = first.add_physical(1, 4096, 0, Origin::kApplication);
  Physical& of_second = second.add_physical(1, 4096, 0, Origin::kApplication);
  EXPECT_EQ(of_first.id, 1u);
  EXPECT_LT(of_first.id, of_second.id);
  EXPECT_EQ(Inventory::runtime_of(of_first.id), 0u);
  EXPECT_EQ(Inventory::runtime_of(of_second.id), 1u);
  of_second.references = 1;
  const Handle handle = Inventory::to_handle(of_second);
  EXPECT_TRUE(Inventory::is_our_handle(handle));
  EXPECT_EQ(second.from_handle(handle), &of_second);
  EXPECT_EQ(first.from_handle(handle), nullptr);
}

TEST(InventoryTest, GenerationChangesWithEveryAllocation) {
  Inventory inventory(0);
  const std::uint64_t empty = inventory.generation();
  Physical& physical = inventory.add_physical(1, kMiB, 0, Origin::kApplication);
  const std::uint64_t one = inventory.generation();
  EXPECT_NE(one, empty);
  inventory.remove_physical(physical);
  EXPECT_NE(inventory.generation(), one);
}

TEST(InventoryTest, ImportedMemoryCountsOnceItsSizeIsKnown) {
  Inventory inventory(0);
  Physical& physical = inventory.add_physical(1, 0, 0, Origin::kImported);
  EXPECT_EQ(inventory.tracked_bytes(), 0u);
  EXPECT_EQ(inventory.tracked_count(), 1u);
  const std::uint64_t generation = inventory.generation();
  inventory.set_size(physical, kMiB);
  EXPECT_GT(inventory.generation(), generation);
  EXPECT_EQ(inventory.tracked_bytes(), kMiB);
  inventory.remove_physical(physical);
  EXPECT_EQ(inventory.tracked_bytes(), 0u);
}

TEST(InventoryTest, HandleIsValidOnlyWhileHeld) {
  Inventory inventory(0);
  Physical& physical = inventory.add_physical(77, kMiB, 0, Origin::kApplication);
  physical.references = 1;
  const Handle handle = Inventory::to_handle(physical);
  EXPECT_TRUE(Inventory::is_our_handle(handle));
  EXPECT_EQ(inventory.from_handle(handle), &physical);
  physical.references = 0;
  EXPECT_EQ(inventory.from_handle(handle), nullptr);
  EXPECT_FALSE(Inventory::is_our_handle(77));
  EXPECT_EQ(inventory.from_handle(77), nullptr);
}

TEST(InventoryTest, MappingsAreCountedPerAllocation) {
  Inventory inventory(0);
  Physical& physical = inventory.add_physical(1, 4 * kMiB, 0, Origin::kApplication);
  inventory.add_mapping(kBase, 2 * kMiB, 0, physical);
  inventory.add_mapping(kBase + 8 * kMiB, 2 * kMiB, 2 * kMiB, physical);
  EXPECT_EQ(physical.mappings, 2u);
  EXPECT_EQ(inventory.remove_mapping(kBase).physical, &physical);
  EXPECT_EQ(physical.mappings, 1u);
  EXPECT_EQ(inventory.find_mapping(kBase), nullptr);
}

TEST(InventoryTest, UntrackedBytesFollowAllocationsAndFrees) {
  Inventory inventory(0);
  inventory.add_untracked(kBase, 100, false);
  inventory.add_untracked(kBase + 512, 200, true);
  EXPECT_EQ(inventory.untracked_bytes(), 300u);
  EXPECT_EQ(inventory.managed_count(), 1u);
  inventory.remove_untracked(kBase + 512);
  inventory.remove_untracked(kBase + 1024);
  EXPECT_EQ(inventory.untracked_bytes(), 100u);
  EXPECT_EQ(inventory.managed_count(), 0u);
}

}  // namespace
}  // namespace gcr::preload

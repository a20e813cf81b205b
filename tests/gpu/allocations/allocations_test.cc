#include "migrate-agent/gpu/allocations/allocations.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "migrate-agent/gpu/allocations/lister.h"

namespace gcr::gpu {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr MemberId kChild{1};
constexpr std::uint64_t kSize = 2 << 20;

/// Mappings of one member, under these numbers.
std::vector<LocalAllocation> local(std::initializer_list<std::uint64_t> ids) {
  std::vector<LocalAllocation> list;
  for (const std::uint64_t id : ids) list.push_back({.local_id = id, .size_bytes = id * kSize});
  return list;
}

/// The same, all of one memory.
std::vector<LocalAllocation> of_memory(std::uint64_t memory,
                                       std::initializer_list<std::uint64_t> ids) {
  std::vector<LocalAllocation> list = local(ids);
  for (LocalAllocation& one : list) {
    one.size_bytes = kSize;
    one.memory = memory;
  }
  return list;
}

Job::Changes follow(Job& job, MemberId member, std::vector<LocalAllocation> now) {
  return job.follow(std::vector<Listed>{{member, std::move(now)}});
}

std::vector<std::uint64_t> numbers(const std::set<AllocationId>& ids) {
  std::vector<std::uint64_t> list;
  for (const AllocationId id : ids) list.push_back(id.value);
  return list;
}

/// Allocation 1: mapped by the root as 10, and by the child as 20.
Job shared() {
  Job job(2);
  (void)job.follow(std::vector<Listed>{{kRoot, of_memory(5, {10})}, {kChild, of_memory(5, {20})}});
  return job;
}

TEST(Job, AllocationsAreNumberedInTheOrderSeen) {
  Job job;
  (void)follow(job, kRoot, local({7, 3}));
  EXPECT_EQ(job.find({kRoot, 7}), AllocationId{1});
  EXPECT_EQ(job.find({kRoot, 3}), AllocationId{2});
  EXPECT_EQ(job.find({kRoot, 1}), std::nullopt);
  EXPECT_EQ(job.allocations().at({2}).size_bytes, 3 * kSize);
  EXPECT_THAT(job.allocations().at({2}).mapped_by, ElementsAre(Mapping{kRoot, 3}));
}

TEST(Job, UnchangedAllocationsAreNoChange) {
  Job job;
  (void)follow(job, kRoot, local({7, 3}));
  const Job::Changes again = follow(job, kRoot, local({3, 7}));
  EXPECT_EQ(job.allocations().size(), 2u);
  EXPECT_THAT(numbers(again.remapped), IsEmpty());
  EXPECT_THAT(numbers(again.removed), IsEmpty());
}

TEST(Job, NumbersAreNeverReused) {
  Job job;
  (void)follow(job, kRoot, local({7, 3}));
  const Job::Changes freed = follow(job, kRoot, local({7}));
  EXPECT_THAT(numbers(freed.removed), ElementsAre(2));
  (void)follow(job, kRoot, local({7, 3}));
  EXPECT_EQ(job.find({kRoot, 3}), AllocationId{3}) << "it may be another one";
}

TEST(Job, MembersMayUseEqualNumbersForDifferentMemory) {
  Job job(2);
  (void)follow(job, kRoot, local({7}));
  (void)follow(job, kChild, local({7}));
  EXPECT_THAT(numbers(follow(job, kRoot, {}).removed), ElementsAre(1));
  EXPECT_EQ(job.find({kChild, 7}), AllocationId{2});
}

TEST(Job, AllocationMappedByTwoMembersIsOne) {
  Job job = shared();
  EXPECT_EQ(job.allocations().size(), 1u);
  EXPECT_THAT(job.allocations().at({1}).mapped_by,
              ElementsAre(Mapping{kRoot, 10}, Mapping{kChild, 20}));
  EXPECT_EQ(job.find({kChild, 20}), AllocationId{1});
}

TEST(Job, SharedAllocationEndsWithItsLastMapping) {
  Job job(2);
  (void)follow(job, kRoot, of_memory(5, {10}));
  const Job::Changes joined = follow(job, kChild, of_memory(5, {20}));
  EXPECT_THAT(numbers(joined.removed), IsEmpty());
  EXPECT_THAT(numbers(joined.remapped), ElementsAre(1));
  const Job::Changes left = follow(job, kRoot, {});
  EXPECT_THAT(numbers(left.remapped), ElementsAre(1));
  EXPECT_THAT(numbers(left.removed), IsEmpty());
  const Job::Changes gone = follow(job, kChild, {});
  EXPECT_THAT(numbers(gone.remapped), IsEmpty());
  EXPECT_THAT(numbers(gone.removed), ElementsAre(1));
  EXPECT_TRUE(job.allocations().empty());
}

TEST(Job, MemberMayMapAnAllocationUnderTwoNumbers) {
  Job job(2);
  (void)follow(job, kRoot, of_memory(5, {10}));
  const Job::Changes moved = follow(job, kRoot, of_memory(5, {11, 12}));
  EXPECT_THAT(numbers(moved.remapped), ElementsAre(1));
  EXPECT_THAT(numbers(moved.removed), IsEmpty());
  EXPECT_THAT(job.allocations().at({1}).mapped_by,
              ElementsAre(Mapping{kRoot, 11}, Mapping{kRoot, 12}));
}

TEST(Job, PrivateAllocationMayBecomeShared) {
  Job job(2);
  (void)follow(job, kRoot, local({10}));
  const Job::Changes changes =
      job.follow(std::vector<Listed>{{kChild, of_memory(5, {20})}, {kRoot, of_memory(5, {10})}});
  EXPECT_THAT(numbers(changes.remapped), ElementsAre(1));
  EXPECT_EQ(job.find({kChild, 20}), AllocationId{1});
}

TEST(Job, TwoAllocationsOfOneMemoryAreMerged) {
  Job job(2);
  (void)follow(job, kRoot, local({10}));
  (void)follow(job, kChild, of_memory(5, {20}));
  const Job::Changes changes =
      job.follow(std::vector<Listed>{{kRoot, of_memory(5, {10})}, {kChild, of_memory(5, {20})}});
  EXPECT_THAT(numbers(changes.removed), ElementsAre(1));
  EXPECT_THAT(numbers(changes.remapped), ElementsAre(2));
  EXPECT_THAT(job.allocations().at({2}).mapped_by,
              ElementsAre(Mapping{kChild, 20}, Mapping{kRoot, 10}));
}

TEST(Job, SizeFromOneMemberHoldsForAll) {
  Job job(2);
  std::vector<LocalAllocation> unmapped = of_memory(5, {20});
  unmapped.front().size_bytes = 0;
  (void)follow(job, kChild, unmapped);
  EXPECT_EQ(job.allocations().at({1}).size_bytes, 0u);
  (void)job.follow(std::vector<Listed>{{kChild, unmapped}, {kRoot, of_memory(5, {10})}});
  EXPECT_EQ(job.allocations().at({1}).size_bytes, kSize);
}

UniqueFd memory() { return UniqueFd(::memfd_create("vram", MFD_CLOEXEC)); }

TEST(SameMemory, DuplicatedDescriptorsAreTheSameMemory) {
  SameMemory same;
  std::vector<UniqueFd> descriptors;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    descriptors.push_back(memory());
    EXPECT_EQ(same.number(descriptors.back().get()).value(), i);
  }
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const UniqueFd copy(::dup(descriptors[i - 1].get()));
    EXPECT_EQ(same.number(copy.get()).value(), i);
    EXPECT_EQ(same.find(::getpid(), copy.get()), i);
  }
  EXPECT_EQ(same.find(::getpid(), memory().get()), std::nullopt);
  EXPECT_EQ(same.find(::getpid(), -1), std::nullopt);
  EXPECT_FALSE(same.number(-1));
}

TEST(Job, DestinationAddsAllocationsByNumber) {
  const Job theirs = shared();
  Job job(2);
  for (const auto& [id, allocation] : theirs.allocations()) EXPECT_TRUE(job.add(allocation));
  EXPECT_EQ(job.find({kChild, 20}), AllocationId{1});
  EXPECT_TRUE(job.remove({1}));
  EXPECT_FALSE(job.remove({1}));
  EXPECT_EQ(job.find({kChild, 20}), std::nullopt);
  EXPECT_TRUE(job.add({{1}, {}, kSize, {{kChild, 20}}}));
}

TEST(Job, InvalidChangesAreRefusedWithoutEffect) {
  Job job = shared();
  EXPECT_FALSE(job.add({{1}, {}, kSize, {{kRoot, 11}}})) << "a number that is taken";
  EXPECT_FALSE(job.add({{2}, {}, kSize, {}})) << "without a mapping";
  EXPECT_FALSE(job.add({{2}, {}, kSize, {{kRoot, 11}, {{2}, 1}}})) << "by an unknown member";
  EXPECT_FALSE(job.add({{2}, {}, kSize, {{kRoot, 11}, {kChild, 20}}})) << "the child's other one";
  EXPECT_FALSE(job.add({{2}, {}, kSize, {{kRoot, 11}, {kRoot, 11}}})) << "named twice";
  EXPECT_EQ(job.find({kRoot, 11}), std::nullopt);
  EXPECT_TRUE(job.add({{2}, {}, kSize, {{kRoot, 11}}}));
  EXPECT_FALSE(job.remap({3}, {{kRoot, 12}}));
  EXPECT_FALSE(job.remap({2}, {{kChild, 21}, {kRoot, 10}}));
  EXPECT_FALSE(job.remap({2}, {}));
  EXPECT_EQ(job.find({kRoot, 11}), AllocationId{2});
  EXPECT_TRUE(job.remap({2}, {{kChild, 21}, {kRoot, 11}}));
  EXPECT_EQ(job.find({kChild, 21}), AllocationId{2});
}

ino_t inode(const UniqueFd& fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return status.st_ino;
}

TEST(Job, MembersGetDescriptorsByTheirOwnNumbers) {
  Job job = shared();
  (void)follow(job, kChild, local({20, 10}));
  Descriptors descriptors;
  descriptors.emplace_back(AllocationId{1}, memory());
  descriptors.emplace_back(AllocationId{2}, memory());
  const ino_t first = inode(descriptors[0].second);
  const ino_t second = inode(descriptors[1].second);
  const auto split = job.split(std::move(descriptors));
  ASSERT_TRUE(split) << split.error().message();
  ASSERT_EQ(split->size(), 2u);
  const LocalDescriptors& root = split->at(kRoot);
  const LocalDescriptors& child = split->at(kChild);
  ASSERT_EQ(root.size(), 1u);
  EXPECT_EQ(root[0].first, 10u);
  EXPECT_EQ(inode(root[0].second), first);
  ASSERT_EQ(child.size(), 2u);
  EXPECT_EQ(child[0].first, 20u);
  EXPECT_EQ(inode(child[0].second), first);
  EXPECT_EQ(child[1].first, 10u);
  EXPECT_EQ(inode(child[1].second), second);
}

}  // namespace
}  // namespace gcr::gpu

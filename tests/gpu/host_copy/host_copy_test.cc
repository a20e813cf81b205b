// Copies VRAM into host memory, which a keeper holds, and back, on a GPU.
#include "migrate-agent/gpu/host_copy/host_copy.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <random>
#include <vector>

#include "src/base/units.h"
#include "tests/support/driver_under_test.h"

namespace gcr::gpu {
namespace {

using testing::HasSubstr;
using Content = std::vector<std::byte>;

class HostCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    auto driver = device::load_driver_under_test();
    ASSERT_TRUE(driver) << driver.error().message();
    driver_ = *driver;
    auto gpu = driver_->open(driver_->gpus().front());
    ASSERT_TRUE(gpu) << gpu.error().message();
    gpu_ = *gpu;
    secret_.fill(std::byte{0x5c});
    vram_.emplace(driver_, digest::DigestKey::expand(secret_));
    copy_.emplace(driver_, hostmem::HugepagePolicy::kAuto);
    auto keeper = keeper::Keeper::start(GCR_KEEPER_PATH);
    ASSERT_TRUE(keeper) << keeper.error().message();
    keeper_.emplace(std::move(*keeper));
  }

  void TearDown() override {
    if (keeper_) {
      EXPECT_TRUE(keeper_->end());
    }
  }

  /// A buffer of the job, with random content, which two members map.
  void allocate(std::uint64_t number, std::uint64_t size_bytes) {
    const AllocationId id{number};
    auto vram = gpu_->create(size_bytes, std::nullopt);
    ASSERT_TRUE(vram) << vram.error().message();
    Content content(size_bytes);
    std::mt19937_64 random(number);
    for (std::byte& byte : content) byte = static_cast<std::byte>(random());
    const auto stream = gpu_->stream();
    ASSERT_TRUE((*stream)->copy_in((*vram)->address(), content.data(), size_bytes));
    ASSERT_TRUE((*stream)->synchronize());
    auto descriptor = (*vram)->duplicate_descriptor();
    ASSERT_TRUE(descriptor);
    ASSERT_TRUE(vram_->add(id, gpu_->info().uuid, size_bytes, std::move(*descriptor)));
    ASSERT_TRUE(
        job_.add({id, gpu_->info().uuid, size_bytes, {{{0}, number}, {{1}, number + 100}}}));
    content_[number] = std::move(content);
  }

  void keep() {
    ASSERT_TRUE(copy_->make_room(job_));
    EXPECT_EQ(copy_->missing_bytes(job_), 0u);
    const auto digests = vram_->digest_now();
    ASSERT_TRUE(digests) << digests.error().message();
    const Status filled = copy_->fill(job_, *vram_);
    ASSERT_TRUE(filled) << filled.error().message();
    KeptCopy description;
    description.set_digest_key(secret_.data(), secret_.size());
    const Status kept = copy_->hand_over(job_, *digests, description, *keeper_);
    ASSERT_TRUE(kept) << kept.error().message();
    copy_.reset();
    vram_.reset();
  }

  Content read(UniqueFd descriptor, std::uint64_t size_bytes) {
    const auto vram = gpu_->import(std::move(descriptor), size_bytes);
    EXPECT_TRUE(vram) << vram.error().message();
    Content content(size_bytes);
    const auto stream = gpu_->stream();
    EXPECT_TRUE((*stream)->copy_out(content.data(), (*vram)->address(), size_bytes));
    EXPECT_TRUE((*stream)->synchronize());
    return content;
  }

  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<device::Gpu> gpu_;
  std::array<std::byte, 32> secret_{};
  Job job_{2};
  std::map<std::uint64_t, Content> content_;
  std::optional<mover::OutgoingVram> vram_;
  std::optional<HostCopy> copy_;
  std::optional<keeper::Keeper> keeper_;
};

TEST_F(HostCopyTest, CopyRestoresTheContent) {
  allocate(1, 4 * kMiB);
  ASSERT_TRUE(copy_->make_room(job_));
  allocate(2, 6 * kMiB);  // created meanwhile: it gets its own region
  EXPECT_EQ(copy_->missing_bytes(job_), 6 * kMiB);
  ASSERT_NO_FATAL_FAILURE(keep());

  const auto copy = HostCopy::open(keeper_->id());
  ASSERT_TRUE(copy) << copy.error().message();
  EXPECT_EQ(copy->count(), 2u);
  EXPECT_EQ(copy->total_bytes(), 10 * kMiB);
  EXPECT_EQ(copy->bytes_by_gpu(), (std::map<Uuid, std::uint64_t>{{gpu_->info().uuid, 10 * kMiB}}));
  const auto vram = copy->create_vram(driver_, {});
  ASSERT_TRUE(vram);
  ASSERT_TRUE(copy->copy_to(*vram));
  const Status same = copy->verify(*vram);
  ASSERT_TRUE(same) << same.error().message();

  auto second = keeper::Keeper::start(GCR_KEEPER_PATH);
  ASSERT_TRUE(second);
  ASSERT_TRUE(copy->hand_over_vram(*vram, *second));
  auto taken = keeper::take_from(second->id());
  ASSERT_TRUE(taken) << taken.error().message();
  for (auto& [number, descriptor] : (*taken)[{1}]) {
    const Content& expected = content_.at(number - 100);
    EXPECT_EQ(read(std::move(descriptor), expected.size()), expected);
  }
  EXPECT_EQ((*taken)[{0}].size(), 2u);
  EXPECT_TRUE(second->end());
}

TEST_F(HostCopyTest, ChangedByteInHostMemoryIsFound) {
  allocate(7, 4 * kMiB);
  ASSERT_NO_FATAL_FAILURE(keep());
  auto taken = keeper::take_from(keeper_->id());
  ASSERT_TRUE(taken) << taken.error().message();
  const UniqueFd& file = (*taken)[kRoot].at(1).second;
  void* at = ::mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  static_cast<std::byte*>(at)[3 * kMiB] ^= std::byte{1};
  ::munmap(at, 4 * kMiB);

  const auto copy = HostCopy::open(keeper_->id());
  ASSERT_TRUE(copy) << copy.error().message();
  const auto vram = copy->create_vram(driver_, {});
  ASSERT_TRUE(vram);
  ASSERT_TRUE(copy->copy_to(*vram));
  const Status changed = copy->verify(*vram);
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code(), Code::kDataLoss);
  EXPECT_THAT(changed.error().message(), HasSubstr("chunk 1 of buffer 7"));
}

TEST_F(HostCopyTest, KeeperOfOtherContentIsRefused) {
  const UniqueFd file(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), "nonsense", 8, 0), 8);
  const keeper::BufferDescriptor kept{{kRoot, 0}, file.get()};
  ASSERT_TRUE(keeper_->arm({&kept, 1}));
  const auto taken = HostCopy::open(keeper_->id());
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kDataLoss);
}

TEST_F(HostCopyTest, WithoutAKeeperThereIsNoCopy) {
  const journal::ProcessId id = keeper_->id();
  ASSERT_TRUE(keeper_->end());
  const auto taken = HostCopy::open(id);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gcr::gpu

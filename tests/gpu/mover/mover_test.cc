// Both ends of the mover over a real TCP transport: the VRAM of one process arrives byte for byte
// in another allocation, in rounds, while it is written to; and damage is found.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/gpu/mover/mover_fixture.h"

namespace gcr::mover {
namespace {

TEST_F(Mover, VramArrivesIntactAndIsSentOnce) {
  for (const unsigned id : {1, 2, 3}) allocate(id, id * 6 * kMiB, id);
  ASSERT_TRUE(connect());
  const auto sent = round();
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(*sent, 36 * kMiB);
  EXPECT_EQ(channel_->statistics().payload_bytes, 36 * kMiB);
  expect_arrived();
}

TEST_F(Mover, ZeroChunksAreNotSent) {
  device::Allocation& vram = allocate(1, 16 * kMiB, 0);
  const std::byte one{1};
  write(vram, 9 * kMiB, &one, 1);
  ASSERT_TRUE(connect());
  const auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, kChunkBytes);
  EXPECT_EQ(last_.zero_chunks, 7U);
  expect_arrived();
}

TEST_F(Mover, OnlyChangedChunksAreResent) {
  device::Allocation& vram = allocate(1, 32 * kMiB, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, 0U);
  const std::byte changed{0x77};
  write(vram, 5 * kMiB, &changed, 1);
  write(vram, 32 * kMiB - 1, &changed, 1);
  sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, 2 * kChunkBytes);
  expect_arrived();
}

TEST_F(Mover, ChunkThatBecomesZeroIsClearedButNotSent) {
  device::Allocation& vram = allocate(1, 8 * kMiB, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  const std::vector<std::byte> zeros(kChunkBytes);
  write(vram, 2 * kMiB, zeros.data(), zeros.size());
  const auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, 0U);
  EXPECT_EQ(last_.cleared_chunks, 1U);
  expect_arrived();
}

TEST_F(Mover, WritingProgramArrivesAsItWasWhenStopped) {
  constexpr std::uint64_t kSize = 16 * kMiB;
  device::Allocation& vram = allocate(1, kSize, 1);
  ASSERT_TRUE(connect());
  std::mt19937 random(4242);
  for (int run = 0; run < 200; ++run) {
    std::atomic<bool> stop = false;
    std::thread writer([&, seed = random()] {
      std::mt19937 choose(seed);
      while (!stop) {
        const std::uint64_t length = 1 + choose() % 100'000;
        const std::uint64_t offset = choose() % (kSize - length);
        const std::vector<std::byte> bytes(length, std::byte(choose() % 3));
        write(vram, offset, bytes.data(), length);
      }
    });
    for (unsigned rounds = 0; rounds < 1 + run % 3U; ++rounds) EXPECT_TRUE(round());
    stop = true;
    writer.join();
    const auto rest = round();  // the application is stopped
    ASSERT_TRUE(rest) << rest.error().message();
    const auto verified = incoming_->fill_and_verify(outgoing_->digests());
    ASSERT_TRUE(verified) << "run " << run << ": " << verified.error().message();
  }
  expect_arrived();
}

TEST_F(Mover, WithoutPrefillVramIsAllocatedAtTheEnd) {
  incoming_->begin(key_, Mode::kReload, kLimits);
  device::Allocation& vram = allocate(1, 32 * kMiB, 1);
  allocate(2, 4 * kMiB, 0);
  const auto before = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  const std::vector<std::byte> zeros(kChunkBytes);
  write(vram, 6 * kMiB, zeros.data(), zeros.size());
  ASSERT_TRUE(round());
  const auto after = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(*before, *after);
  expect_arrived();
}

TEST_F(Mover, KeptContentLiesInFilesThatOutliveTheMover) {
  incoming_->begin(key_, Mode::kKeep, kLimits);
  allocate(1, 6 * kMiB, 1);
  allocate(2, 4 * kMiB, 0);
  const auto before = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  const auto verified = incoming_->fill_and_verify(outgoing_->digests());
  ASSERT_TRUE(verified) << verified.error().message();
  EXPECT_EQ(*verified, 5u);
  EXPECT_EQ(incoming_->free_bytes(gpu_).value(), before.value());
  const auto [region, offset] = incoming_->kept({1});
  const UniqueFd file(::fcntl(incoming_->landing()[region].file(), F_DUPFD_CLOEXEC, 0));
  channel_.reset();
  listener_.reset();
  incoming_.reset();
  void* const at =
      ::mmap(nullptr, 6 * kMiB, PROT_READ, MAP_SHARED, file.get(), static_cast<off_t>(offset));
  ASSERT_NE(at, MAP_FAILED);
  const std::vector<std::byte> original = read(*application_.at({1}));
  EXPECT_EQ(std::memcmp(at, original.data(), original.size()), 0);
  ::munmap(at, 6 * kMiB);
}

TEST_F(Mover, VerifyFindsAChangedByteInKeptContent) {
  incoming_->begin(key_, Mode::kKeep, kLimits);
  allocate(7, 8 * kMiB, 7);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  incoming_->region({7}).landing[5 * kMiB] ^= std::byte{1};
  const auto verified = incoming_->fill_and_verify(outgoing_->digests());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kDataLoss);
  EXPECT_NE(verified.error().message().find("buffer 7"), std::string::npos);
  EXPECT_NE(verified.error().message().find("4 MiB"), std::string::npos);
}

TEST_F(Mover, PrefillBecomesReloadIfVramRunsOut) {
  allocate(1, 8 * kMiB, 1);
  allocate(2, 8 * kMiB, 2);
  const auto free = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(free);
  {
    auto occupied = device_->create(*free / kChunkBytes * kChunkBytes - 10 * kMiB, std::nullopt);
    ASSERT_TRUE(occupied) << occupied.error().message();
    ASSERT_TRUE(connect());  // the first buffer would fit, the second does not
    EXPECT_EQ(incoming_->mode(), Mode::kReload);
    EXPECT_NE(incoming_->note().find("after the switchover"), std::string::npos);
    ASSERT_TRUE(round());
    const auto too_early = incoming_->fill_and_verify(outgoing_->digests());
    ASSERT_FALSE(too_early);
    EXPECT_EQ(too_early.error().code(), Code::kResourceExhausted);
  }
  expect_arrived();
}

TEST_F(Mover, OnlyTheLateBufferThatDoesNotFitIsReloaded) {
  allocate(1, 8 * kMiB, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  wanted_.clear();
  allocate(2, 8 * kMiB, 2);
  {
    const auto free = incoming_->free_bytes(gpu_);
    ASSERT_TRUE(free);
    auto occupied = device_->create(*free / kChunkBytes * kChunkBytes - 4 * kMiB, std::nullopt);
    ASSERT_TRUE(occupied) << occupied.error().message();
    ASSERT_TRUE(prepare(wanted_));
  }
  EXPECT_EQ(incoming_->mode(), Mode::kReload);
  EXPECT_TRUE(incoming_->region({1}).landing.empty());
  EXPECT_EQ(incoming_->region({2}).landing.size(), 8 * kMiB);
  ASSERT_TRUE(open_regions(wanted_));
  ASSERT_TRUE(round());
  expect_arrived();
}

TEST_F(Mover, AllVramLandsInTheWindow) {
  allocate(1, 64 * kMiB, 1);
  allocate(2, 2 * kMiB, 2);
  ASSERT_TRUE(connect());
  EXPECT_EQ(reserved_bytes_, kLimits.most_bytes);
  EXPECT_EQ(incoming_->window().bytes.size(), kLimits.most_bytes);
  for (unsigned seed = 10; seed < 13; ++seed) {
    write(*application_.at({1}), 0, pattern(64 * kMiB, seed).data(), 64 * kMiB);
    const auto sent = round();
    ASSERT_TRUE(sent) << sent.error().message();
  }
  expect_arrived();
  EXPECT_EQ(reserved_bytes_, kLimits.most_bytes);
}

TEST_F(Mover, WindowIsNoLargerThanTheVram) {
  const IncomingVram::WindowLimits limits{.most_bytes = 4 * kGiB, .lanes = kLanes};
  EXPECT_EQ(limits.needed_for(100 * kGiB), 4 * kGiB);
  EXPECT_EQ(limits.needed_for(kGiB + 1), kGiB + kChunkBytes);
  const std::uint64_t least = limits.needed_for(0);
  EXPECT_GE(least, 2 * kLanes * transport::kPlaceBytes) << "each lane receives while one uploads";
  EXPECT_LE(least, 64 * kMiB);
}

TEST_F(Mover, BuffersMayAppearAndVanishBetweenRounds) {
  allocate(1, 8 * kMiB, 1);
  allocate(2, 4 * kMiB, 2);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  outgoing_->remove({1});
  ASSERT_TRUE(listener_->receiver().remove_region(incoming_->region({1}).id));
  incoming_->remove({1});
  application_.erase({1});
  wanted_.clear();
  allocate(3, 6 * kMiB, 3);
  const std::uint64_t reserved = reserved_bytes_;
  ASSERT_TRUE(prepare(wanted_));
  EXPECT_EQ(reserved_bytes_, reserved) << "the window serves all buffers";
  ASSERT_TRUE(open_regions(wanted_));
  const auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, 6 * kMiB);
  expect_arrived();
}

TEST_F(Mover, LandingMemoryIsReused) {
  incoming_->begin(key_, Mode::kReload, kLimits);
  allocate(1, 8 * kMiB, 1);
  ASSERT_TRUE(connect());
  const std::byte* first = incoming_->region({1}).landing.data();
  ASSERT_TRUE(listener_->receiver().remove_region(incoming_->region({1}).id));
  incoming_->remove({1});
  ASSERT_TRUE(prepare({{{3}, gpu_, 6 * kMiB}}));
  EXPECT_EQ(incoming_->region({3}).landing.data(), first);
  EXPECT_EQ(reserved_bytes_, 8 * kMiB);
}

TEST_F(Mover, FullGpuIsReadWithoutSnapshots) {
  allocate(1, 4 * kMiB, 1);
  wanted_.clear();
  const auto free = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(free);
  OutgoingVram crowded(driver_, key_);
  auto occupied = device_->create(*free / kChunkBytes * kChunkBytes - 4 * kMiB, std::nullopt);
  ASSERT_TRUE(occupied) << occupied.error().message();
  auto descriptor = application_.at({1})->duplicate_descriptor();
  ASSERT_TRUE(descriptor);
  const Status added = crowded.add({1}, gpu_, 4 * kMiB, std::move(*descriptor));
  ASSERT_TRUE(added) << added.error().message();
  incoming_->begin(key_, Mode::kReload, kLimits);
  wanted_.push_back({{1}, gpu_, 4 * kMiB});
  ASSERT_TRUE(connect());
  google::protobuf::RepeatedPtrField<proto::BufferRegion> regions;
  regions.Add()->set_buffer_id(1);
  regions.rbegin()->set_region(incoming_->region({1}).id);
  ASSERT_TRUE(crowded.assign(regions));
  ChannelTarget target(*channel_);
  const auto dirty = crowded.find_dirty(target);
  ASSERT_TRUE(dirty);
  const auto sent = crowded.send(*dirty, target);
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(*sent, 4 * kMiB);
  const auto verified = incoming_->fill_and_verify(crowded.digests());
  EXPECT_TRUE(verified) << verified.error().message();
}

TEST_F(Mover, VerifyFindsAChangedByteInVram) {
  allocate(7, 8 * kMiB, 7);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  expect_arrived();
  std::byte changed = read(*application_.at({7}))[5 * kMiB] ^ std::byte{1};
  ASSERT_TRUE(incoming_->arrived(incoming_->region({7}).id, 5 * kMiB,
                                 transport::Place({&changed, 1}, [] {})));
  const auto verified = incoming_->fill_and_verify(outgoing_->digests());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kDataLoss);
  EXPECT_NE(verified.error().message().find("buffer 7"), std::string::npos);
  EXPECT_NE(verified.error().message().find("4 MiB"), std::string::npos);
}

TEST_F(Mover, MissingDigestsDoNotCountAsVerified) {
  allocate(1, 4 * kMiB, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  auto digests = outgoing_->digests();
  digests.at({1}).pop_back();
  const auto verified = incoming_->fill_and_verify(digests);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kProtocol);
}

TEST_F(Mover, AnUnknownGpuIsNamed) {
  const Uuid nowhere = Uuid::random();
  const Status prepared = prepare({{{1}, nowhere, 2 * kMiB}});
  ASSERT_FALSE(prepared);
  EXPECT_NE(prepared.error().message().find(nowhere.to_string()), std::string::npos);
}

}  // namespace
}  // namespace gcr::mover

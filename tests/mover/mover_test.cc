// The mover's two halves over a real TCP transport: what one process created arrives byte for byte
// in VRAM of another allocation, in rounds, while it is written to; and damage is found.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "migrate-agent/mover/incoming_vram.h"
#include "migrate-agent/mover/outgoing_vram.h"
#include "src/base/units.h"
#include "transport/tcp/tcp.h"

namespace gcr::mover {
namespace {

digest::DigestKey test_key() {
  std::array<std::byte, 32> bytes{};
  bytes.fill(std::byte{0x5c});
  return digest::DigestKey::expand(bytes);
}

/// A receiver behind a loopback listener that accepts what connects.
class Listener {
 public:
  explicit Listener(transport::TcpReceiverOptions options)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), receiver_(std::move(options)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::jthread([this] {
      for (;;) {
        UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!accepted) return;
        EXPECT_TRUE(receiver_.add_connection(std::move(accepted)));
      }
    });
  }
  ~Listener() { ::shutdown(socket_.get(), SHUT_RDWR); }

  std::uint16_t port() const { return port_; }
  transport::TcpReceiver& receiver() { return receiver_; }

 private:
  UniqueFd socket_;
  transport::TcpReceiver receiver_;
  std::uint16_t port_ = 0;
  std::jthread acceptor_;
};

using Wanted = IncomingVram::Wanted;
using Mode = IncomingVram::Mode;

class Mover : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = CudaDriver::load();
    ASSERT_TRUE(driver) << driver.error().message();
    driver_ = *driver;
    ASSERT_FALSE(driver_->gpus().empty());
    gpu_ = driver_->gpus().front().uuid;
    auto context = GpuContext::create(driver_, driver_->gpus().front());
    ASSERT_TRUE(context) << context.error().message();
    context_ = *context;
    outgoing_ = std::make_unique<OutgoingVram>(driver_, key_);
    incoming_ = std::make_unique<IncomingVram>(driver_, landing::HugepagePolicy::kNever);
    incoming_->begin(key_, Mode::kPrefill);
  }

  /// Content that depends on the seed in every word.
  static std::vector<std::uint64_t> pattern(std::uint64_t size_bytes, unsigned seed) {
    std::vector<std::uint64_t> content(size_bytes / 8);
    std::mt19937_64 random(seed);
    for (auto& word : content) word = random();
    return content;
  }

  void write(const Vram& vram, std::uint64_t offset, const void* bytes, std::uint64_t length) {
    auto stream = Stream::create(context_);
    ASSERT_TRUE(stream);
    ASSERT_EQ(driver_->cuMemcpyHtoDAsync_v2(vram.address() + offset, bytes, length, stream->get()),
              CUDA_SUCCESS);
    ASSERT_TRUE(stream->synchronize());
  }

  std::vector<std::byte> read(const Vram& vram) {
    std::vector<std::byte> bytes(vram.size_bytes());
    auto stream = Stream::create(context_);
    EXPECT_EQ(
        driver_->cuMemcpyDtoHAsync_v2(bytes.data(), vram.address(), bytes.size(), stream->get()),
        CUDA_SUCCESS);
    EXPECT_TRUE(stream->synchronize());
    return bytes;
  }

  /// An allocation of the "application", full of zeros or (seed not 0) of the seed's pattern, taken
  /// over by the mover.
  Vram& allocate(BufferId id, std::uint64_t size_bytes, unsigned seed) {
    auto vram = Vram::create(context_, size_bytes);
    EXPECT_TRUE(vram) << vram.error().message();
    const auto content =
        seed != 0 ? pattern(size_bytes, seed) : std::vector<std::uint64_t>(size_bytes / 8);
    write(*vram, 0, content.data(), size_bytes);
    auto descriptor = vram->duplicate_descriptor();
    EXPECT_TRUE(descriptor);
    const Status added = outgoing_->add(id, gpu_, size_bytes, std::move(*descriptor));
    EXPECT_TRUE(added) << added.error().message();
    wanted_.push_back({id, gpu_, size_bytes});
    return application_.emplace(id, std::move(*vram)).first->second;
  }

  Status connect() {
    GCR_TRY(incoming_->prepare(wanted_));
    listener_ = std::make_unique<Listener>(transport::TcpReceiverOptions{
        .token = "token",
        .on_landed = [&](transport::RegionId region, std::uint64_t offset, std::uint64_t length) {
          return incoming_->landed(region, offset, length);
        }});
    GCR_TRY(open_regions(wanted_));
    GCR_ASSIGN(channel_,
               transport::connect("127.0.0.1", listener_->port(), {.lanes = 2, .token = "token"}));
    return {};
  }

  Status open_regions(const std::vector<Wanted>& wanted) {
    for (const Wanted& buffer : wanted) {
      const auto region = static_cast<transport::RegionId>(buffer.id);
      GCR_TRY(listener_->receiver().add_region(region, incoming_->landing(buffer.id)));
      outgoing_->assign(buffer.id, region);
    }
    return {};
  }

  /// One round; the bytes sent.
  Result<std::uint64_t> round() {
    GCR_ASSIGN(last_, outgoing_->find_dirty());
    return outgoing_->send(last_, *channel_);
  }

  /// Verified, and every byte at the destination as the application has it now.
  void expect_arrived() {
    const auto verified = incoming_->fill_and_verify(outgoing_->digests());
    ASSERT_TRUE(verified) << verified.error().message();
    EXPECT_EQ(*verified, outgoing_->total_bytes() / kChunkBytes);
    auto copies = incoming_->descriptors();
    ASSERT_TRUE(copies);
    ASSERT_EQ(copies->size(), application_.size());
    for (auto& [id, descriptor] : *copies) {
      const Vram& original = application_.at(id);
      auto copy = Vram::import(context_, std::move(descriptor), original.size_bytes());
      ASSERT_TRUE(copy) << copy.error().message();
      EXPECT_EQ(read(original), read(*copy)) << "buffer " << id;
    }
  }

  digest::DigestKey key_ = test_key();
  std::shared_ptr<const CudaDriver> driver_;
  std::shared_ptr<GpuContext> context_;
  Uuid gpu_;
  std::map<BufferId, Vram> application_;
  std::vector<Wanted> wanted_;
  std::unique_ptr<OutgoingVram> outgoing_;
  std::unique_ptr<IncomingVram> incoming_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<transport::Channel> channel_;
  OutgoingVram::Dirty last_;
};

TEST_F(Mover, VramArrivesByteForByteAndIsSentOnce) {
  for (const unsigned id : {1, 2, 3}) allocate(id, id * 6 * kMiB, id);
  ASSERT_TRUE(connect());
  const auto sent = round();
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(*sent, 36 * kMiB);
  EXPECT_EQ(channel_->statistics().payload_bytes, 36 * kMiB);
  expect_arrived();
}

TEST_F(Mover, ZeroChunksAreNeitherFoundNorSent) {
  Vram& vram = allocate(1, 16 * kMiB, 0);
  const std::byte one{1};
  write(vram, 9 * kMiB, &one, 1);
  ASSERT_TRUE(connect());
  const auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, kChunkBytes);
  EXPECT_EQ(last_.zero_chunks, 7U);
  expect_arrived();
}

TEST_F(Mover, OnlyChangedChunksAreSentAgain) {
  Vram& vram = allocate(1, 32 * kMiB, 1);
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

TEST_F(Mover, AChunkThatBecomesZerosIsClearedWithoutBeingSent) {
  Vram& vram = allocate(1, 8 * kMiB, 1);
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

TEST_F(Mover, AProgramThatWritesWhileItIsCopiedArrivesAsItStoodStill) {
  constexpr std::uint64_t kSize = 16 * kMiB;
  Vram& vram = allocate(1, kSize, 1);
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
    const auto rest = round();  // the application stands still
    ASSERT_TRUE(rest) << rest.error().message();
    const auto verified = incoming_->fill_and_verify(outgoing_->digests());
    ASSERT_TRUE(verified) << "run " << run << ": " << verified.error().message();
  }
  expect_arrived();
}

TEST_F(Mover, WithoutPrefillVramIsTakenAndFilledOnlyAtTheEnd) {
  incoming_->begin(key_, Mode::kReload);
  Vram& vram = allocate(1, 32 * kMiB, 1);
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

TEST_F(Mover, WhereVramDoesNotSufficePrefillTurnsIntoReload) {
  allocate(1, 8 * kMiB, 1);
  allocate(2, 8 * kMiB, 2);
  const auto free = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(free);
  {
    auto occupied = Vram::create(context_, *free / kChunkBytes * kChunkBytes - 10 * kMiB);
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

TEST_F(Mover, BuffersAppearAndVanishBetweenRounds) {
  allocate(1, 8 * kMiB, 1);
  allocate(2, 4 * kMiB, 2);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  const std::byte* first = incoming_->landing(1).data();
  outgoing_->remove(1);
  ASSERT_TRUE(listener_->receiver().remove_region(1));
  incoming_->remove(1);
  application_.erase(1);
  wanted_.clear();
  allocate(3, 6 * kMiB, 3);
  ASSERT_TRUE(incoming_->prepare(wanted_));
  EXPECT_EQ(incoming_->landing(3).data(), first) << "landing memory is used again";
  ASSERT_TRUE(open_regions(wanted_));
  const auto sent = round();
  ASSERT_TRUE(sent);
  EXPECT_EQ(*sent, 6 * kMiB);
  expect_arrived();
}

TEST_F(Mover, AFullGpuIsReadWithoutCopiesAside) {
  allocate(1, 4 * kMiB, 1);
  wanted_.clear();
  const auto free = incoming_->free_bytes(gpu_);
  ASSERT_TRUE(free);
  OutgoingVram crowded(driver_, key_);
  auto occupied = Vram::create(context_, *free / kChunkBytes * kChunkBytes - 4 * kMiB);
  ASSERT_TRUE(occupied) << occupied.error().message();
  auto descriptor = application_.at(1).duplicate_descriptor();
  ASSERT_TRUE(descriptor);
  const Status added = crowded.add(1, gpu_, 4 * kMiB, std::move(*descriptor));
  ASSERT_TRUE(added) << added.error().message();
  incoming_->begin(key_, Mode::kReload);
  wanted_.push_back({1, gpu_, 4 * kMiB});
  ASSERT_TRUE(connect());
  crowded.assign(1, 1);
  const auto dirty = crowded.find_dirty();
  ASSERT_TRUE(dirty);
  const auto sent = crowded.send(*dirty, *channel_);
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(*sent, 4 * kMiB);
  const auto verified = incoming_->fill_and_verify(crowded.digests());
  EXPECT_TRUE(verified) << verified.error().message();
}

TEST_F(Mover, AChangedByteInVramIsNamedByVerify) {
  allocate(7, 8 * kMiB, 7);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  expect_arrived();
  incoming_->landing(7)[5 * kMiB] ^= std::byte{1};
  ASSERT_TRUE(incoming_->landed(7, 4 * kMiB, 2 * kMiB));
  const auto verified = incoming_->fill_and_verify(outgoing_->digests());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kDataLoss);
  EXPECT_NE(verified.error().message().find("buffer 7"), std::string::npos);
  EXPECT_NE(verified.error().message().find("4 MiB"), std::string::npos);
}

TEST_F(Mover, MissingDigestsAreNotTakenForVerified) {
  allocate(1, 4 * kMiB, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  auto digests = outgoing_->digests();
  digests.at(1).pop_back();
  const auto verified = incoming_->fill_and_verify(digests);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kProtocol);
}

TEST_F(Mover, AnUnknownGpuIsNamed) {
  const Uuid nowhere = Uuid::random();
  const Status prepared = incoming_->prepare({{1, nowhere, 2 * kMiB}});
  ASSERT_FALSE(prepared);
  EXPECT_NE(prepared.error().message().find(nowhere.to_string()), std::string::npos);
}

}  // namespace
}  // namespace gcr::mover

// The mover's two halves over a real TCP transport, on the software GPU: what one process created
// arrives byte for byte in VRAM of another allocation, and damage is found.
#include "migrate-agent/mover/mover.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>
#include <thread>

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
  }

  /// An allocation of the "application" with random content, exported to the mover.
  UniqueFd make_application_buffer(std::uint64_t size_bytes, unsigned seed) {
    auto vram = Vram::create(context_, size_bytes);
    EXPECT_TRUE(vram) << vram.error().message();
    std::vector<std::uint64_t> content(size_bytes / 8);
    std::mt19937_64 random(seed);
    for (auto& word : content) word = random();
    auto stream = Stream::create(context_);
    EXPECT_EQ(
        driver_->cuMemcpyHtoDAsync_v2(vram->address(), content.data(), size_bytes, stream->get()),
        CUDA_SUCCESS);
    EXPECT_TRUE(stream->synchronize());
    auto descriptor = vram->duplicate_descriptor();
    EXPECT_TRUE(descriptor);
    return std::move(*descriptor);
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

  /// Sends everything in `outgoing` to `incoming`.
  Status transfer(OutgoingVram& outgoing, IncomingVram& incoming,
                  const std::vector<IncomingVram::Wanted>& wanted) {
    GCR_TRY(incoming.prepare(wanted));
    Listener listener(
        {.token = "token",
         .on_landed = [&](transport::RegionId region, std::uint64_t offset, std::uint64_t length) {
           return incoming.upload(region, offset, length);
         }});
    for (const auto& buffer : wanted) {
      const auto region = static_cast<transport::RegionId>(buffer.id);
      GCR_TRY(listener.receiver().add_region(region, incoming.landing(buffer.id)));
      outgoing.assign(buffer.id, region);
    }
    GCR_ASSIGN(auto channel,
               transport::connect("127.0.0.1", listener.port(), {.lanes = 2, .token = "token"}));
    GCR_TRY(outgoing.send(*channel, key_));
    sent_bytes_ = channel->statistics().payload_bytes;
    return {};
  }

  digest::DigestKey key_ = test_key();
  std::shared_ptr<const CudaDriver> driver_;
  std::shared_ptr<GpuContext> context_;
  Uuid gpu_;
  std::uint64_t sent_bytes_ = 0;
};

TEST_F(Mover, VramArrivesByteForByteAndIsSentOnce) {
  OutgoingVram outgoing(driver_);
  std::vector<IncomingVram::Wanted> wanted;
  for (const std::uint64_t id : {1, 2, 3}) {
    const std::uint64_t size = id * 6 * kMiB;
    ASSERT_TRUE(outgoing.add(id, gpu_, size, make_application_buffer(size, unsigned(id))));
    wanted.push_back({id, gpu_, size});
  }
  IncomingVram incoming(driver_, landing::HugepagePolicy::kAuto);
  const Status moved = transfer(outgoing, incoming, wanted);
  ASSERT_TRUE(moved) << moved.error().message();
  EXPECT_EQ(sent_bytes_, outgoing.total_bytes());
  const auto verified = incoming.verify(key_, outgoing.digests());
  ASSERT_TRUE(verified) << verified.error().message();
  EXPECT_EQ(*verified, 36 * kMiB / kChunkBytes);

  auto sources = outgoing.descriptors();
  auto copies = incoming.descriptors();
  ASSERT_TRUE(sources && copies);
  ASSERT_EQ(sources->size(), copies->size());
  for (std::size_t i = 0; i < sources->size(); ++i) {
    const std::uint64_t size = wanted[i].size_bytes;
    auto source = Vram::import(context_, std::move((*sources)[i].second), size);
    auto copy = Vram::import(context_, std::move((*copies)[i].second), size);
    ASSERT_TRUE(source && copy);
    EXPECT_EQ(read(*source), read(*copy));
  }
}

TEST_F(Mover, AChangedByteInVramIsNamedByVerify) {
  OutgoingVram outgoing(driver_);
  ASSERT_TRUE(outgoing.add(7, gpu_, 8 * kMiB, make_application_buffer(8 * kMiB, 7)));
  IncomingVram incoming(driver_, landing::HugepagePolicy::kNever);
  ASSERT_TRUE(transfer(outgoing, incoming, {{7, gpu_, 8 * kMiB}}));
  ASSERT_TRUE(incoming.verify(key_, outgoing.digests()));
  incoming.landing(7)[5 * kMiB] ^= std::byte{1};
  ASSERT_TRUE(incoming.upload(7, 4 * kMiB, 2 * kMiB));
  const auto verified = incoming.verify(key_, outgoing.digests());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kDataLoss);
  EXPECT_NE(verified.error().message().find("buffer 7"), std::string::npos);
  EXPECT_NE(verified.error().message().find("4 MiB"), std::string::npos);
}

TEST_F(Mover, MissingDigestsAreNotTakenForVerified) {
  OutgoingVram outgoing(driver_);
  ASSERT_TRUE(outgoing.add(1, gpu_, 4 * kMiB, make_application_buffer(4 * kMiB, 1)));
  IncomingVram incoming(driver_, landing::HugepagePolicy::kNever);
  ASSERT_TRUE(transfer(outgoing, incoming, {{1, gpu_, 4 * kMiB}}));
  auto digests = outgoing.digests();
  digests.at(1).pop_back();
  const auto verified = incoming.verify(key_, digests);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kProtocol);
}

TEST_F(Mover, MoreVramThanThereIsIsRefusedAndNothingRemains) {
  IncomingVram incoming(driver_, landing::HugepagePolicy::kNever);
  const auto before = incoming.free_bytes(gpu_);
  ASSERT_TRUE(before);
  // The first two fit, the third does not.
  const std::uint64_t third = round_up(*before / 2, kChunkBytes);
  const Status prepared = incoming.prepare(
      {{1, gpu_, third - 8 * kMiB}, {2, gpu_, third - 8 * kMiB}, {3, gpu_, third}});
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code(), Code::kResourceExhausted);
  const auto after = incoming.free_bytes(gpu_);
  ASSERT_TRUE(after);
  EXPECT_EQ(*before, *after);
}

TEST_F(Mover, AnUnknownGpuIsNamed) {
  IncomingVram incoming(driver_, landing::HugepagePolicy::kNever);
  const Uuid nowhere = Uuid::random();
  const Status prepared = incoming.prepare({{1, nowhere, 2 * kMiB}});
  ASSERT_FALSE(prepared);
  EXPECT_NE(prepared.error().message().find(nowhere.to_string()), std::string::npos);
}

}  // namespace
}  // namespace gcr::mover

// What tests of the mover share: both ends over a real TCP transport, and an application whose
// buffers they move.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/mover/incoming_vram.h"
#include "migrate-agent/gpu/mover/outgoing_vram.h"
#include "src/base/units.h"
#include "tests/support/driver_under_test.h"
#include "transport/tcp/tcp.h"

namespace gcr::mover {

inline digest::DigestKey test_key() {
  std::array<std::byte, 32> bytes{};
  bytes.fill(std::byte{0x5c});
  return digest::DigestKey::expand(bytes);
}

/// A receiver behind a loopback listener that accepts what connects.
class Listener {
 public:
  explicit Listener(transport::TcpReceiverOptions options)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        receiver_(transport::receive_tcp(std::move(options))) {
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
        EXPECT_TRUE(receiver_->add_connection(std::move(accepted)));
      }
    });
  }
  ~Listener() { ::shutdown(socket_.get(), SHUT_RDWR); }

  std::uint16_t port() const { return port_; }
  transport::TcpReceiver& receiver() { return *receiver_; }

 private:
  UniqueFd socket_;
  std::unique_ptr<transport::TcpReceiver> receiver_;
  std::uint16_t port_ = 0;
  std::jthread acceptor_;
};

/// A target that has no chunks of its own.
struct ChannelTarget : ChunkTarget {
  explicit ChannelTarget(transport::Channel& to) : to(to) {}
  transport::Channel& channel() override { return to; }
  transport::Channel& to;
};

using Wanted = IncomingVram::Wanted;
using Mode = IncomingVram::Mode;

class Mover : public ::testing::Test {
 protected:
  static constexpr unsigned kLanes = 2;
  static constexpr IncomingVram::WindowLimits kLimits{.most_bytes = 8 * kMiB, .lanes = kLanes};

  void SetUp() override {
    auto driver = device::load_driver_under_test();
    ASSERT_TRUE(driver) << driver.error().message();
    driver_ = *driver;
    ASSERT_FALSE(driver_->gpus().empty());
    gpu_ = driver_->gpus().front().uuid;
    auto opened = driver_->open(driver_->gpus().front());
    ASSERT_TRUE(opened) << opened.error().message();
    device_ = *opened;
    outgoing_ = std::make_unique<OutgoingVram>(driver_, key_);
    incoming_ = std::make_unique<IncomingVram>(driver_, hostmem::HugepagePolicy::kNever);
    incoming_->begin(key_, Mode::kPrefill, kLimits);
  }

  /// Content that depends on the seed in every word.
  static std::vector<std::uint64_t> pattern(std::uint64_t size_bytes, unsigned seed) {
    std::vector<std::uint64_t> content(size_bytes / 8);
    std::mt19937_64 random(seed);
    for (auto& word : content) word = random();
    return content;
  }

  void write(const device::Allocation& vram, std::uint64_t offset, const void* bytes,
             std::uint64_t length) {
    const auto stream = device_->stream();
    ASSERT_TRUE(stream);
    const auto* from = static_cast<const std::byte*>(bytes);
    ASSERT_TRUE((*stream)->copy_in(vram.address() + offset, from, length));
    ASSERT_TRUE((*stream)->synchronize());
  }

  std::vector<std::byte> read(const device::Allocation& vram) {
    std::vector<std::byte> bytes(vram.size_bytes());
    const auto stream = device_->stream();
    EXPECT_TRUE((*stream)->copy_out(bytes.data(), vram.address(), bytes.size()));
    EXPECT_TRUE((*stream)->synchronize());
    return bytes;
  }

  /// An allocation of the "application", full of zeros (seed 0) or of the seed's pattern, taken
  /// over by the mover.
  device::Allocation& allocate(std::uint64_t number, std::uint64_t size_bytes, unsigned seed) {
    const AllocationId id{number};
    auto vram = device_->create(size_bytes, std::nullopt);
    EXPECT_TRUE(vram) << vram.error().message();
    const auto content =
        seed != 0 ? pattern(size_bytes, seed) : std::vector<std::uint64_t>(size_bytes / 8);
    write(**vram, 0, content.data(), size_bytes);
    auto descriptor = (*vram)->duplicate_descriptor();
    EXPECT_TRUE(descriptor);
    const Status added = outgoing_->add(id, gpu_, size_bytes, std::move(*descriptor));
    EXPECT_TRUE(added) << added.error().message();
    wanted_.push_back({id, gpu_, size_bytes});
    return *application_.emplace(id, std::move(*vram)).first->second;
  }

  Status connect() {
    GCR_TRY(prepare(wanted_));
    listener_ = std::make_unique<Listener>(transport::TcpReceiverOptions{
        .token = "token",
        .max_lanes = kLanes,
        .on_landed = [&](transport::RegionId region, std::uint64_t offset, std::uint64_t length) {
          return incoming_->landed(region, offset, length);
        }});
    GCR_TRY(open_regions(wanted_));
    GCR_ASSIGN(channel_, transport::connect({{"127.0.0.1", listener_->port()}},
                                            {.lanes = kLanes, .token = "token"}));
    return {};
  }

  Status prepare(const std::vector<Wanted>& wanted) {
    return incoming_->prepare(wanted, [this](std::uint64_t bytes) -> Status {
      reserved_bytes_ += bytes;
      return {};
    });
  }

  Status open_regions(const std::vector<Wanted>& wanted) {
    google::protobuf::RepeatedPtrField<proto::BufferRegion> regions;
    for (const Wanted& buffer : wanted) {
      const auto region = incoming_->region(buffer.id);
      GCR_TRY(open_region(region));
      regions.Add()->set_buffer_id(buffer.id.value);
      regions.rbegin()->set_region(region.id);
    }
    return outgoing_->assign(regions);
  }

  Status open_region(const IncomingVram::Region& region) {
    transport::Receiver& receiver = listener_->receiver();
    if (!region.landing.empty()) return receiver.add_region(region.id, region.landing);
    if (!std::exchange(window_is_open_, true)) {
      GCR_TRY(receiver.open_window(incoming_->window()));
    }
    return receiver.add_windowed_region(region.id, region.size_bytes);
  }

  /// One round; returns the bytes sent.
  Result<std::uint64_t> round() {
    ChannelTarget target(*channel_);
    GCR_ASSIGN(last_, outgoing_->find_dirty(target));
    return outgoing_->send(last_, target);
  }

  /// Verified, and every byte at the destination equals the application's now.
  void expect_arrived() {
    const auto verified = incoming_->fill_and_verify(outgoing_->digests());
    ASSERT_TRUE(verified) << verified.error().message();
    EXPECT_EQ(*verified, outgoing_->total_bytes() / kChunkBytes);
    auto copies = incoming_->descriptors();
    ASSERT_TRUE(copies);
    ASSERT_EQ(copies->size(), application_.size());
    for (auto& [id, descriptor] : *copies) {
      const device::Allocation& original = *application_.at(id);
      auto copy = device_->import(std::move(descriptor), original.size_bytes());
      ASSERT_TRUE(copy) << copy.error().message();
      EXPECT_EQ(read(original), read(**copy)) << "buffer " << id.value;
    }
  }

  digest::DigestKey key_ = test_key();
  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<device::Gpu> device_;
  Uuid gpu_;
  std::map<AllocationId, std::unique_ptr<device::Allocation>> application_;
  std::vector<Wanted> wanted_;
  std::unique_ptr<OutgoingVram> outgoing_;
  std::unique_ptr<IncomingVram> incoming_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<transport::Channel> channel_;
  OutgoingVram::Dirty last_;
  std::uint64_t reserved_bytes_ = 0;
  bool window_is_open_ = false;
};

}  // namespace gcr::mover

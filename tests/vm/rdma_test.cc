// The RDMA transport over soft RoCE, in addition to the conformance suite: the devices, a link that
// loses packets, and a sender that writes outside its region.
#include "transport/rdma/rdma.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "src/base/units.h"
#include "tests/support/rdma_link.h"
#include "transport/rdma/messages.h"
#include "transport/rdma/queue_pair.h"

namespace gcr::test {
namespace {

using transport::RdmaReceiver;
using Clock = std::chrono::steady_clock;

constexpr transport::RegionId kRegion = 3;
constexpr std::chrono::milliseconds kPeerTimeout{2000};

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

class Rdma : public testing::Test {
 protected:
  void SetUp() override {
    auto listening = transport::listen_rdma({.addresses = {{.host = RdmaLink::kReceiverAddress}},
                                             .token = "token",
                                             .peer_timeout = kPeerTimeout});
    ASSERT_TRUE(listening) << listening.error().message();
    receiver_ = std::move(*listening);
  }

  void connect() {
    auto connected = transport::connect_rdma(
        receiver_->addresses(), {.lanes = 2, .token = "token", .peer_timeout = kPeerTimeout});
    ASSERT_TRUE(connected) << connected.error().message();
    channel_ = std::move(*connected);
  }

  Status write_and_flush(std::span<const std::byte> bytes) {
    GCR_TRY(channel_->write(kRegion, 0, bytes));
    return channel_->flush();
  }

  std::unique_ptr<RdmaReceiver> receiver_;
  std::unique_ptr<transport::Channel> channel_;
};

TEST_F(Rdma, DevicesCanBeUsed) { EXPECT_EQ(transport::why_no_rdma(), ""); }

TEST_F(Rdma, RegisteredMemoryArrives) {
  const auto source = random_bytes(5 * kMiB + 3);
  std::vector<std::byte> target(source.size());
  ASSERT_TRUE(receiver_->add_region(kRegion, target));
  connect();
  ASSERT_TRUE(channel_->add_source(source));
  const Status written = write_and_flush(source);
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(target, source);
}

TEST_F(Rdma, AllDataArrivesOverALossyLink) {
  const auto source = random_bytes(4 * kMiB);
  std::vector<std::byte> target(source.size());
  ASSERT_TRUE(receiver_->add_region(kRegion, target));
  connect();
  RdmaLink link;
  link.lose(1);
  const Status written = write_and_flush(source);
  EXPECT_TRUE(written) << written.error().message();
  EXPECT_EQ(target, source);
  EXPECT_TRUE(receiver_->health());
}

TEST_F(Rdma, AddressWithoutADeviceIsUnsupported) {
  auto listening = transport::listen_rdma({.addresses = {{.host = "192.0.2.1"}}});
  ASSERT_FALSE(listening);
  EXPECT_NE(listening.error().message().find("192.0.2.1"), std::string::npos);
}

/// A sender that uses verbs directly, and requests anything from the receiver's device.
class HostileSender {
 public:
  static constexpr unsigned kDepth = 2;

  Status connect(const transport::Address& address) {
    using namespace transport::rdma;  // NOLINT
    GCR_ASSIGN(events_, make_event_channel());
    GCR_ASSIGN(ConnectionId id, make_id(events_.get()));
    addrinfo* found = nullptr;
    EXPECT_EQ(
        ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), nullptr, &found),
        0);
    const int asked = rdma_resolve_addr(id.get(), nullptr, found->ai_addr, 2000);
    ::freeaddrinfo(found);
    if (asked != 0) return verbs_error("resolve");
    GCR_TRY(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
    if (rdma_resolve_route(id.get(), 2000) != 0) return verbs_error("route");
    GCR_TRY(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
    GCR_ASSIGN(domain_, make_protection_domain(id->verbs));
    GCR_ASSIGN(memory_, register_memory(domain_.get(), bytes_, IBV_ACCESS_LOCAL_WRITE));
    GCR_ASSIGN(queue_pair_, QueuePair::make(std::move(id), domain_.get(), kDepth));
    const auto hello = encode(Hello{.lane = 0, .lanes = 1, .depth = kDepth, .token = "token"});
    rdma_conn_param parameters = connection_parameters(hello);
    if (rdma_connect(queue_pair_->id(), &parameters) != 0) return verbs_error("connect");
    return expect(RDMA_CM_EVENT_ESTABLISHED);
  }

  /// The key that the receiver offers for its region.
  Result<transport::rdma::Message> ask_for_key() {
    return say({.type = transport::rdma::MessageType::kRegionQuery, .region = kRegion});
  }

  /// The receiver's next message after this one.
  Result<transport::rdma::Message> say(const transport::rdma::Message& message) {
    using namespace transport::rdma;  // NOLINT
    GCR_TRY(queue_pair_->send(0, message));
    for (;;) {
      GCR_ASSIGN(const Completion next, completion());
      if (next.kind == Completion::Kind::kReceived) return queue_pair_->received(next);
    }
  }

  /// As say(), but the receiver may not answer yet.
  Status tell(const transport::rdma::Message& message) { return queue_pair_->send(1, message); }

  /// The device's answer to a write of the whole buffer to that place.
  Result<ibv_wc_status> write(std::uint64_t address, std::uint32_t key) {
    using namespace transport::rdma;  // NOLINT
    const RemoteWrite write{.from = bytes_.data(),
                            .length_bytes = static_cast<std::uint32_t>(bytes_.size()),
                            .local_key = memory_->lkey,
                            .address = address,
                            .remote_key = key};
    constexpr unsigned kSlot = 1;
    GCR_TRY(queue_pair_->send(kSlot, {.type = MessageType::kEnd}, write));
    for (;;) {
      // The completion of the request may still come: the reply can be faster.
      GCR_ASSIGN(const Completion next, completion());
      if (next.kind == Completion::Kind::kSent && next.slot == kSlot) return next.raw.status;
    }
  }

 private:
  Status expect(rdma_cm_event_type wanted) {
    for (;;) {
      GCR_ASSIGN(const auto event, transport::rdma::next_event(events_.get()));
      if (event && event->event == wanted) return {};
      if (event) return Error(Code::kUnavailable, rdma_event_str(event->event));
      GCR_TRY(wait(events_->fd));
    }
  }

  Result<transport::rdma::Completion> completion() {
    while (taken_.empty()) {
      GCR_TRY(queue_pair_->drain([this](const transport::rdma::Completion& next) -> Status {
        taken_.push_back(next);
        return {};
      }));
      if (!taken_.empty()) break;
      GCR_TRY(wait(queue_pair_->completion_fd()));
      queue_pair_->acknowledge_notification();
    }
    const transport::rdma::Completion first = taken_.front();
    taken_.erase(taken_.begin());
    return first;
  }

  static Status wait(int fd) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, 20'000) == 1) return {};
    return Error(Code::kTimeout, "nothing happened");
  }

  std::vector<std::byte> bytes_ = random_bytes(64);
  transport::rdma::EventChannel events_;
  transport::rdma::ProtectionDomain domain_;
  transport::rdma::MemoryRegion memory_;
  std::unique_ptr<transport::rdma::QueuePair> queue_pair_;
  std::vector<transport::rdma::Completion> taken_;
};

/// Where a hostile sender with a valid key writes.
struct Place {
  std::string name;
  std::int64_t from_start = 0;  ///< of a region of 1000 bytes
  std::uint32_t key_change = 0;
  bool removed = false;
};

class RdmaHostile : public Rdma, public testing::WithParamInterface<Place> {};

TEST_P(RdmaHostile, DeviceRefusesTheWrite) {
  std::vector<std::byte> around(3000, std::byte{0xee});
  ASSERT_TRUE(receiver_->add_region(kRegion, std::span(around).subspan(1000, 1000)));
  HostileSender sender;
  const Status connected = sender.connect(receiver_->addresses().front());
  ASSERT_TRUE(connected) << connected.error().message();
  const auto key = sender.ask_for_key();
  ASSERT_TRUE(key) << key.error().message();
  ASSERT_EQ(key->length, 1000U);
  if (GetParam().removed) {
    ASSERT_TRUE(receiver_->remove_region(kRegion));
  }
  const auto said = sender.write(key->offset + static_cast<std::uint64_t>(GetParam().from_start),
                                 key->key + GetParam().key_change);
  ASSERT_TRUE(said) << said.error().message();
  EXPECT_EQ(*said, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(*said);
  EXPECT_EQ(around, std::vector<std::byte>(3000, std::byte{0xee}));
}

INSTANTIATE_TEST_SUITE_P(Places, RdmaHostile,
                         testing::Values(Place{.name = "BeforeTheRegion", .from_start = -1},
                                         Place{.name = "OverItsEnd", .from_start = 937},
                                         Place{.name = "FarAway", .from_start = 1 << 20},
                                         Place{.name = "WithAGuessedKey", .key_change = 1},
                                         Place{.name = "AfterItsRemoval", .removed = true}),
                         [](const auto& info) { return info.param.name; });

/// What a sender claims about the window, after it has requested its part and filled its first
/// slot.
struct Claim {
  std::string name;
  transport::rdma::Message message;
  std::string refusal;
};

transport::rdma::Message written(std::uint16_t place, std::uint64_t length = 64,
                                 transport::RegionId region = kRegion) {
  return {.type = transport::rdma::MessageType::kLanded,
          .places = place,
          .region = region,
          .number = 1,
          .length = length};
}

class RdmaWindowHostile : public Rdma, public testing::WithParamInterface<Claim> {};

TEST_P(RdmaWindowHostile, ClaimOfAForeignSlotBreaksTheLane) {
  constexpr std::size_t kPlaces = 128;
  std::vector<std::byte> memory(kPlaces * transport::kPlaceBytes);
  std::vector<std::byte> own(1000);
  std::vector<transport::Place> held;  // by the lane's thread, until the receiver is destroyed
  const auto hold = [&](auto, auto, transport::Place place) -> Status {
    held.push_back(std::move(place));
    return {};
  };
  ASSERT_TRUE(receiver_->open_window({memory, hold}));
  ASSERT_TRUE(receiver_->add_windowed_region(kRegion, memory.size()));
  ASSERT_TRUE(receiver_->add_region(kRegion + 1, own));
  HostileSender sender;
  const Status connected = sender.connect(receiver_->addresses().front());
  ASSERT_TRUE(connected) << connected.error().message();
  const auto key = sender.ask_for_key();
  ASSERT_TRUE(key) << key.error().message();
  EXPECT_EQ(key->places, kPlaces / 64) << "64 lanes share the window";
  // Its first slot is filled, and not released: the only answer is the refusal.
  ASSERT_TRUE(sender.tell(written(1)));
  const auto answer = sender.say(GetParam().message);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->type, transport::rdma::MessageType::kError);
  EXPECT_NE(answer->error->message().find(GetParam().refusal), std::string::npos)
      << answer->error->message();
  EXPECT_EQ(receiver_->health().error().code(), answer->error->code());
  receiver_.reset();
  EXPECT_EQ(held.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Claims, RdmaWindowHostile,
    testing::Values(Claim{"Twice", written(1), "may not use now"},
                    Claim{"BehindItsPart", written(3), "may not use now"},
                    Claim{"FarAway", written(0xffff), "may not use now"},
                    Claim{"MoreThanAPlace", written(2, transport::kPlaceBytes + 1),
                          "may not use now"},
                    Claim{"BehindTheRegion", written(2, ~std::uint64_t{0}), "does not fit"},
                    Claim{"NoPlaceAtAll", written(0), "landing window instead of region"},
                    Claim{"APlaceForARegionWithMemory", written(2, 64, kRegion + 1),
                          "landing window instead of region"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gcr::test

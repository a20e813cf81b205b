// RDMA for the conformance suite: two soft devices with a link between them that can be broken.
// Runs only with scripts/lib/guest-rdma-pair; an emulated processor drives it.
#include "tests/conformance/transport_under_test.h"
#include "tests/support/rdma_link.h"
#include "transport/rdma/rdma.h"

namespace gcr::test {
namespace {

constexpr std::chrono::milliseconds kImpatientPeerTimeout{2000};
constexpr std::chrono::milliseconds kConnectTimeout{8000};
constexpr std::uint64_t kPieceBytes = 256 * kKiB;
constexpr unsigned kDepth = 4;

class RdmaTransfer : public Transfer {
 public:
  explicit RdmaTransfer(TransferOptions options) : options_(std::move(options)) {
    if (options_.impatient) peer_timeout_ = kImpatientPeerTimeout;
    auto listening = transport::listen_rdma({.addresses = {{.host = RdmaLink::kReceiverAddress}},
                                             .token = "the token of this transfer",
                                             .max_lanes = options_.max_lanes,
                                             .on_landed = options_.on_landed,
                                             .peer_timeout = peer_timeout_});
    if (!listening) {
      std::fprintf(stderr, "%s\n", listening.error().message().c_str());
      std::abort();
    }
    receiver_ = std::move(*listening);
    addresses_ = receiver_->addresses();
  }

  transport::Receiver& receiver() override { return *receiver_; }
  transport::Channel& channel() override { return *channel_; }

  Status connect() override {
    const std::string token =
        options_.wrong_token ? "the token of this transfes" : "the token of this transfer";
    GCR_ASSIGN(channel_, transport::connect_rdma(addresses_, {.lanes = options_.lanes,
                                                              .token = token,
                                                              .connect_timeout = kConnectTimeout,
                                                              .peer_timeout = peer_timeout_,
                                                              .piece_bytes = kPieceBytes,
                                                              .depth = kDepth}));
    return {};
  }

  std::string address() const override { return RdmaLink::kReceiverAddress; }

  void cut() override { link_.stall(); }  // to a device, a cut network is a silent one
  void cut_after(std::int64_t bytes) override {
    link_.pass_only(static_cast<std::uint64_t>(bytes));
  }
  void stall() override { link_.stall(); }
  void interrupt() override {}  // lanes do not reconnect
  void interrupt_after(std::int64_t /*bytes*/) override {}
  void destroy_receiver() override { receiver_.reset(); }
  void destroy_channel() override { channel_.reset(); }

 private:
  TransferOptions options_;
  /// A device resends unacknowledged data within an eighth of it or less; a soft one with a busy
  /// processor does so though nothing was lost, and occasionally fails because of it.
  std::chrono::milliseconds peer_timeout_ = transport::RdmaOptions{}.peer_timeout;
  std::unique_ptr<transport::RdmaReceiver> receiver_;
  std::vector<transport::Address> addresses_;
  std::unique_ptr<transport::Channel> channel_;
  RdmaLink link_;  ///< repaired before the ends say goodbye
};

class RdmaUnderTest : public TransportUnderTest {
 public:
  std::string name() const override { return "Rdma"; }
  Capabilities capabilities() const override {
    return {.shows_token = true,
            .says_why_refused = true,
            .largest_bytes = 16 * kMiB,
            .more_than_buffers = 4 * kMiB};
  }
  std::unique_ptr<Transfer> make(TransferOptions options) const override {
    return std::make_unique<RdmaTransfer>(std::move(options));
  }
};

}  // namespace

std::vector<const TransportUnderTest*> transports_under_test() {
  static const RdmaUnderTest kRdma;
  return {&kRdma};
}

}  // namespace gcr::test

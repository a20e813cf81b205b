// TCP for the conformance suite, plain and under TLS, always through a relay that can break it.

#include <sys/socket.h>

#include <array>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/conformance/transport_under_test.h"
#include "tests/support/tcp_relay.h"
#include "tests/support/test_certificates.h"
#include "transport/tcp/tcp.h"

namespace gcr::test {
namespace {

using transport::TcpOptions;

constexpr std::size_t kPrefaceBytes = 20;

/// The timeout of the ends.
struct Patience {
  std::chrono::milliseconds connect = TcpOptions{}.connect_timeout;
  std::chrono::milliseconds reconnect = TcpOptions{}.reconnect_window;
  std::chrono::milliseconds peer = TcpOptions{}.peer_timeout;
};
constexpr Patience kImpatience{.connect = std::chrono::seconds(2),
                               .reconnect = std::chrono::seconds(1),
                               .peer = std::chrono::seconds(1)};

/// The TCP transport's two ends with a relay between them.
class TcpTransfer : public Transfer {
 public:
  TcpTransfer(TransferOptions options, bool tls)
      : options_(std::move(options)),
        patience_(options_.impatient ? kImpatience : Patience{}),
        tls_(tls),
        relay_(listener_.port()) {
    transport::TcpReceiverOptions receiver{.token = "the token of this transfer",
                                           .max_lanes = options_.max_lanes,
                                           .on_landed = options_.on_landed,
                                           .peer_timeout = patience_.peer,
                                           .reconnect_window = patience_.reconnect};
    if (tls_) {
      receiver.tls = test_contexts().server.get();
      receiver.verify_peer = [wrong = options_.wrong_role](SSL*) -> Status {
        if (wrong) return Error(Code::kPermissionDenied, "this certificate has another role");
        return {};
      };
    }
    receiver_ = transport::receive_tcp(std::move(receiver));
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~TcpTransfer() override {
    channel_.reset();
    relay_.cut();  // wakes connections that still wait for a preface
    listener_.stop();
    acceptor_.join();
  }

  transport::Receiver& receiver() override { return *receiver_; }
  transport::Channel& channel() override { return *channel_; }

  Status connect() override {
    TcpOptions options{
        .lanes = options_.lanes,
        .token = options_.wrong_token ? "the token of this transfes" : "the token of this transfer",
        .preface = std::vector<std::byte>(kPrefaceBytes, std::byte{0x42}),
        .connect_timeout = patience_.connect,
        .reconnect_window = patience_.reconnect,
        .peer_timeout = patience_.peer,
        .rekey_bytes = 3 * kMiB};
    if (tls_) {
      const TestContexts& all = test_contexts();
      options.tls = options_.wrong_authority ? all.strange_client.get() : all.client.get();
      options.verify_peer = [](SSL*) { return Status{}; };
    }
    GCR_ASSIGN(channel_, transport::connect({{"127.0.0.1", relay_.port()}}, options));
    return {};
  }

  std::string address() const override { return "127.0.0.1"; }

  void cut() override { relay_.cut(); }
  void cut_after(std::int64_t bytes) override { relay_.cut_after(bytes); }
  void stall() override { relay_.stall(); }
  void interrupt() override { relay_.cut_once(); }
  void interrupt_after(std::int64_t bytes) override { relay_.cut_once_after(bytes); }
  void destroy_receiver() override {
    const std::lock_guard lock(receiver_mutex_);
    receiver_.reset();
  }
  void destroy_channel() override { channel_.reset(); }

 private:
  void accept_all() {
    while (UniqueFd socket = listener_.accept()) {
      std::array<std::byte, kPrefaceBytes> preface;
      if (::recv(socket.get(), preface.data(), preface.size(), MSG_WAITALL) != kPrefaceBytes) {
        continue;
      }
      const std::lock_guard lock(receiver_mutex_);
      if (receiver_) (void)receiver_->add_connection(std::move(socket));
    }
  }

  TransferOptions options_;
  Patience patience_;
  bool tls_;
  LoopbackListener listener_;
  TcpRelay relay_;
  std::mutex receiver_mutex_;
  std::unique_ptr<transport::TcpReceiver> receiver_;  ///< set and reset under the mutex
  std::thread acceptor_;
  std::unique_ptr<transport::Channel> channel_;
};

class TcpUnderTest : public TransportUnderTest {
 public:
  explicit TcpUnderTest(bool tls) : tls_(tls) {}
  std::string name() const override { return tls_ ? "TcpTls" : "TcpPlain"; }
  Capabilities capabilities() const override {
    return {.shows_token = true,
            .certificates = tls_,
            .reconnects = true,
            .says_why_refused = true,
            // Encryption of 4 GiB would dominate this program's time, and test nothing new.
            .largest_bytes = (tls_ ? kGiB / 4 : 4 * kGiB) + 5,
            .largest_region_bytes = 8 * kGiB,
            .knows_regions_at_once = true};
  }
  std::unique_ptr<Transfer> make(TransferOptions options) const override {
    return std::make_unique<TcpTransfer>(std::move(options), tls_);
  }

 private:
  bool tls_;
};

}  // namespace

std::vector<const TransportUnderTest*> transports_under_test() {
  static const TcpUnderTest kPlain(false);
  static const TcpUnderTest kTls(true);
  return {&kPlain, &kTls};
}

}  // namespace gcr::test

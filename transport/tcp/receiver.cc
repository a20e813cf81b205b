#include <fmt/format.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/tcp/frame.h"
#include "transport/tcp/region_table.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Connections beyond max_lanes that may be between their acceptance and their hello.
constexpr std::size_t kMaxPendingConnections = 16;
// How long a broken lane waits for its sender to read the reason.
constexpr milliseconds kLinger{5000};

/// Whether two tokens are equal, in a time that depends on neither.
bool same_token(const std::string& ours, const std::string& theirs) {
  std::array<char, kMaxTokenBytes> left{};
  std::array<char, kMaxTokenBytes> right{};
  std::memcpy(left.data(), ours.data(), std::min(ours.size(), left.size()));
  std::memcpy(right.data(), theirs.data(), std::min(theirs.size(), right.size()));
  const bool same_length = ours.size() == theirs.size();
  return (CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0) && same_length;
}

/// Lane threads serve sockets only: signals are for the threads of the program.
void become_lane_thread() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "gcr-lane");
}

}  // namespace

class TcpReceiver::Impl {
 public:
  explicit Impl(TcpReceiverOptions options) : options_(std::move(options)) {}
  ~Impl();

  Status add_connection(UniqueFd socket);
  unsigned lanes() const;
  void cancel();
  Status health() const;
  Statistics statistics() const;
  RegionTable& regions() { return regions_; }

 private:
  enum class Phase { kPending, kAccepted, kEnded };

  /// One connection. The stream belongs to the thread; the rest is guarded by mutex_.
  struct Lane {
    explicit Lane(UniqueFd socket) : stream(std::move(socket)) {}
    Stream stream;
    std::uint64_t frames_received = 0;
    std::uint64_t frames_sent = 0;
    Phase phase = Phase::kPending;
    steady_clock::time_point since = steady_clock::now();
    std::thread thread;
  };

  void collect_ended();
  std::size_t count(Phase phase) const;
  Status check_room();
  void run(Lane& lane);
  Status open(Lane& lane);
  Status accept(Lane& lane);
  Status serve(Lane& lane);
  Status land(Lane& lane, const FrameHeader& header);
  Result<FrameHeader> receive_header(Lane& lane);
  static Status answer(Lane& lane, FrameType type, std::string_view payload);
  void break_lane(Lane& lane, const Error& error, bool accepted);

  const TcpReceiverOptions options_;
  RegionTable regions_;
  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;

  mutable std::mutex mutex_;
  std::list<Lane> lanes_;             ///< guarded by mutex_
  std::optional<Error> first_error_;  ///< guarded by mutex_
  std::atomic<bool> broken_ = false;  ///< first_error_ is set
};

TcpReceiver::Impl::~Impl() {
  cancel();
  // Nobody adds lanes any more, and threads never touch the list itself.
  for (Lane& lane : lanes_) lane.thread.join();
}

/// Joins and forgets the lanes whose threads are done. mutex_ is held; those threads need it no
/// more.
void TcpReceiver::Impl::collect_ended() {
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    if (lane->phase == Phase::kEnded) {
      lane->thread.join();
      lane = lanes_.erase(lane);
    } else {
      ++lane;
    }
  }
}

std::size_t TcpReceiver::Impl::count(Phase phase) const {
  return static_cast<std::size_t>(std::count_if(
      lanes_.begin(), lanes_.end(), [phase](const Lane& lane) { return lane.phase == phase; }));
}

/// Makes room for one more pending connection, at the cost of those that take too long for their
/// handshake (the time limit on each single wait does not bound the whole). mutex_ is held.
Status TcpReceiver::Impl::check_room() {
  if (count(Phase::kPending) < options_.max_lanes + kMaxPendingConnections) return {};
  for (Lane& lane : lanes_) {
    const auto age = steady_clock::now() - lane.since;
    if (lane.phase == Phase::kPending && age > options_.handshake_timeout) lane.stream.shut_down();
  }
  return Error(Code::kResourceExhausted, "too many data connections are in their handshake");
}

Status TcpReceiver::Impl::add_connection(UniqueFd socket) {
  if (options_.tls != nullptr && !options_.verify_peer) {
    return Error(Code::kInvalidArgument, "TLS needs a check of the peer's role");
  }
  GCR_TRY(set_blocking(socket.get()));
  GCR_TRY(tune_socket(socket.get(), options_.peer_timeout));
  const std::lock_guard lock(mutex_);
  if (broken_) return *first_error_;
  collect_ended();
  GCR_TRY(check_room());
  Lane& lane = lanes_.emplace_back(std::move(socket));
  lane.thread = std::thread([this, &lane] { run(lane); });
  return {};
}

void TcpReceiver::Impl::run(Lane& lane) {
  become_lane_thread();
  if (auto opened = open(lane); !opened) {
    break_lane(lane, opened.error(), false);
  } else if (auto served = serve(lane); !served) {
    break_lane(lane, served.error(), true);
  }
  lane.stream.shut_down();
  const std::lock_guard lock(mutex_);
  lane.phase = Phase::kEnded;
}

void TcpReceiver::Impl::break_lane(Lane& lane, const Error& error, bool accepted) {
  if (accepted) {
    const std::lock_guard lock(mutex_);
    if (!first_error_) {
      first_error_ = error;
      broken_ = true;
    }
  } else {
    spdlog::warn("a data connection was refused: {}", error.message());
  }
  (void)answer(lane, FrameType::kError, encode_error(error));
  lane.stream.linger(kLinger);
}

Status TcpReceiver::Impl::open(Lane& lane) {
  GCR_TRY(lane.stream.set_timeout(options_.handshake_timeout));
  if (options_.tls != nullptr) {
    GCR_TRY(lane.stream.start_tls(options_.tls, Stream::Side::kServer, options_.verify_peer));
  }
  GCR_ASSIGN(const FrameHeader header, receive_header(lane));
  if (header.type != FrameType::kHello) {
    return Error(Code::kProtocol, "the first frame of a data connection is not a hello");
  }
  HelloBytes bytes;
  GCR_TRY(lane.stream.receive(bytes));
  GCR_ASSIGN(const Hello hello, decode(bytes));
  if (!same_token(options_.token, hello.token)) {
    return Error(Code::kPermissionDenied, "the data connection's token is not this transfer's");
  }
  GCR_TRY(lane.stream.set_timeout(milliseconds(0)));
  GCR_TRY(accept(lane));
  return answer(lane, FrameType::kWelcome, {});
}

Status TcpReceiver::Impl::accept(Lane& lane) {
  const std::lock_guard lock(mutex_);
  if (broken_) return *first_error_;
  if (count(Phase::kAccepted) >= options_.max_lanes) {
    return Error(Code::kResourceExhausted,
                 fmt::format("this transfer has {} data connections already", options_.max_lanes));
  }
  lane.phase = Phase::kAccepted;
  return {};
}

Result<FrameHeader> TcpReceiver::Impl::receive_header(Lane& lane) {
  HeaderBytes bytes;
  GCR_TRY(lane.stream.receive(bytes));
  GCR_ASSIGN(FrameHeader header, decode(bytes));
  if (header.sequence != lane.frames_received++) {
    return Error(Code::kProtocol, "the sender sent a frame out of sequence");
  }
  return header;
}

Status TcpReceiver::Impl::answer(Lane& lane, FrameType type, std::string_view payload) {
  const FrameHeader header{.type = type,
                           .length_bytes = static_cast<std::uint32_t>(payload.size()),
                           .sequence = lane.frames_sent++};
  return lane.stream.send(encode(header), std::as_bytes(std::span(payload)));
}

Status TcpReceiver::Impl::serve(Lane& lane) {
  for (;;) {
    GCR_ASSIGN(const FrameHeader header, receive_header(lane));
    if (broken_) return health();  // one lane's error is every lane's
    switch (header.type) {
      case FrameType::kWrite:
        GCR_TRY(land(lane, header));
        break;
      case FrameType::kFlush:
        GCR_TRY(answer(lane, FrameType::kFlushed, {}));
        break;
      case FrameType::kEnd:
        return {};
      default:
        return Error(Code::kProtocol, fmt::format("the sender sent a frame of type {}",
                                                  static_cast<unsigned>(header.type)));
    }
  }
}

Status TcpReceiver::Impl::land(Lane& lane, const FrameHeader& header) {
  GCR_ASSIGN(const RegionTable::Pin pin,
             regions_.pin(header.region, header.offset, header.length_bytes));
  GCR_TRY(lane.stream.receive(pin.bytes()));
  payload_bytes_.fetch_add(header.length_bytes, std::memory_order_relaxed);
  wire_bytes_.fetch_add(header.length_bytes + kHeaderBytes, std::memory_order_relaxed);
  writes_.fetch_add(1, std::memory_order_relaxed);
  if (!options_.on_landed) return {};
  return options_.on_landed(header.region, header.offset, header.length_bytes);
}

void TcpReceiver::Impl::cancel() {
  const std::lock_guard lock(mutex_);
  if (!first_error_) first_error_ = Error(Code::kCancelled, "the transfer was cancelled");
  broken_ = true;
  for (const Lane& lane : lanes_) lane.stream.shut_down();
}

unsigned TcpReceiver::Impl::lanes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<unsigned>(count(Phase::kAccepted));
}

Status TcpReceiver::Impl::health() const {
  const std::lock_guard lock(mutex_);
  if (first_error_) return *first_error_;
  return {};
}

Statistics TcpReceiver::Impl::statistics() const {
  return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
          .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
          .writes = writes_.load(std::memory_order_relaxed),
          .reconnections = 0};
}

TcpReceiver::TcpReceiver(TcpReceiverOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
TcpReceiver::~TcpReceiver() = default;

Status TcpReceiver::add_connection(UniqueFd socket) {
  return impl_->add_connection(std::move(socket));
}
unsigned TcpReceiver::lanes() const { return impl_->lanes(); }
Status TcpReceiver::add_region(RegionId region, std::span<std::byte> bytes) {
  return impl_->regions().add(region, bytes);
}
Status TcpReceiver::remove_region(RegionId region) { return impl_->regions().remove(region); }
void TcpReceiver::cancel() { impl_->cancel(); }
Status TcpReceiver::health() const { return impl_->health(); }
Statistics TcpReceiver::statistics() const { return impl_->statistics(); }

}  // namespace gcr::transport

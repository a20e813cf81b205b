#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/region_table.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/lane_table.h"
#include "transport/tcp/lane_thread.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Connections beyond max_lanes that may be between their acceptance and their hello.
constexpr std::size_t kMaxPendingConnections = 16;
// How long a broken connection waits for its sender to read the reason.
constexpr milliseconds kLinger{5000};

}  // namespace

class TcpReceiver::Impl {
 public:
  explicit Impl(TcpReceiverOptions options)
      : options_(std::move(options)), lanes_(options_.max_lanes, options_.reconnect_window) {}
  ~Impl();

  Status add_connection(UniqueFd socket);
  unsigned lanes() const { return lanes_.held(); }
  void cancel();
  Status health();
  Statistics statistics() const;
  RegionTable& regions() { return regions_; }

 private:
  enum class Phase { kPending, kAccepted, kEnded };

  /// The stream belongs to the thread; the rest is guarded by mutex_.
  struct Connection {
    explicit Connection(UniqueFd socket) : stream(std::move(socket)) {}
    Stream stream;
    Phase phase = Phase::kPending;
    steady_clock::time_point since = steady_clock::now();
    std::thread thread;
  };

  void collect_ended();
  Status check_room();
  void enter(Connection& connection, Phase phase);
  void run(Connection& connection);
  Result<LaneTable::Hold> open(Connection& connection);
  Status serve(Stream& stream, LaneTable::Hold& lane);
  Status take_frame(Stream& stream, LaneTable::Hold& lane, const FrameHeader& header);
  Status land(Stream& stream, const FrameHeader& header);
  Status fail(const Error& error);
  void say_error(Stream& stream, const Error& error, std::uint64_t landed);

  const TcpReceiverOptions options_;
  RegionTable regions_;
  LaneTable lanes_;
  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;

  mutable std::mutex mutex_;
  std::list<Connection> connections_;  ///< guarded by mutex_
  std::optional<Error> first_error_;   ///< guarded by mutex_
  std::atomic<bool> broken_ = false;   ///< first_error_ is set
};

TcpReceiver::Impl::~Impl() {
  cancel();
  // No more connections are added, and threads never touch the list itself.
  for (Connection& connection : connections_) connection.thread.join();
}

/// Joins and removes the connections whose threads are done. mutex_ is held; those threads no
/// longer need it.
void TcpReceiver::Impl::collect_ended() {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (at->phase == Phase::kEnded) {
      at->thread.join();
      at = connections_.erase(at);
    } else {
      ++at;
    }
  }
}

/// Makes room for one more pending connection, at the cost of those that take too long for their
/// handshake (the time limit on each single wait does not bound the whole). mutex_ is held.
Status TcpReceiver::Impl::check_room() {
  const auto pending = std::count_if(
      connections_.begin(), connections_.end(),
      [](const Connection& connection) { return connection.phase == Phase::kPending; });
  if (static_cast<std::size_t>(pending) < options_.max_lanes + kMaxPendingConnections) return {};
  for (Connection& connection : connections_) {
    const auto age = steady_clock::now() - connection.since;
    if (connection.phase == Phase::kPending && age > options_.handshake_timeout) {
      connection.stream.shut_down();
    }
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
  collect_ended();
  GCR_TRY(check_room());
  Connection& connection = connections_.emplace_back(std::move(socket));
  connection.thread = std::thread([this, &connection] { run(connection); });
  return {};
}

void TcpReceiver::Impl::enter(Connection& connection, Phase phase) {
  const std::lock_guard lock(mutex_);
  connection.phase = phase;
}

void TcpReceiver::Impl::run(Connection& connection) {
  become_lane_thread();
  Stream& stream = connection.stream;
  if (auto lane = open(connection); !lane) {
    spdlog::warn("a data connection was refused: {}", lane.error().message());
    say_error(stream, lane.error(), 0);
  } else if (auto served = serve(stream, *lane); !served) {
    const Error& error = served.error();
    const bool lost = error.code() == Code::kUnavailable || error.code() == Code::kTimeout;
    if (lost && !broken_ && options_.reconnect_window.count() > 0) {
      spdlog::warn("a lane has lost its connection: {}", error.message());
      lane->lose(error);
    } else {
      say_error(stream, fail(error).error(), lane->landed());
    }
  }
  stream.shut_down();
  enter(connection, Phase::kEnded);
}

/// Breaks the transfer with `error` unless it was broken before; gives the error that broke it.
Status TcpReceiver::Impl::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!first_error_) first_error_ = error;
  broken_ = true;
  return *first_error_;
}

void TcpReceiver::Impl::say_error(Stream& stream, const Error& error, std::uint64_t landed) {
  const std::string payload = encode_error(error);
  (void)stream.send(encode({.type = FrameType::kError,
                            .length_bytes = static_cast<std::uint32_t>(payload.size()),
                            .sequence = landed}),
                    std::as_bytes(std::span(payload)));
  stream.linger(kLinger);
}

Result<LaneTable::Hold> TcpReceiver::Impl::open(Connection& connection) {
  Stream& stream = connection.stream;
  GCR_TRY(stream.set_timeout(options_.handshake_timeout));
  if (options_.tls != nullptr) {
    GCR_TRY(stream.start_tls(options_.tls, Stream::Side::kServer, options_.verify_peer,
                             options_.transfer));
  }
  HeaderBytes header_bytes;
  GCR_TRY(stream.receive(header_bytes));
  GCR_ASSIGN(const FrameHeader header, decode(header_bytes));
  if (header.type != FrameType::kHello || header.sequence != 0) {
    return Error(Code::kProtocol, "the first frame of a data connection is not a hello");
  }
  HelloBytes bytes;
  GCR_TRY(stream.receive(bytes));
  GCR_ASSIGN(const Hello hello, decode(bytes));
  if (!same_token(stream.show(options_.token), hello.token)) {
    return Error(Code::kPermissionDenied, "the data connection's token is not this transfer's");
  }
  GCR_TRY(health());
  GCR_ASSIGN(LaneTable::Hold lane, lanes_.take(hello, [&stream] { stream.shut_down(); }));
  enter(connection, Phase::kAccepted);
  GCR_TRY(stream.set_timeout(milliseconds(0)));
  GCR_TRY(stream.send(encode({.type = FrameType::kWelcome, .sequence = lane.landed()}), {}));
  return lane;
}

/// Takes frames until kEnd.
Status TcpReceiver::Impl::serve(Stream& stream, LaneTable::Hold& lane) {
  for (;;) {
    HeaderBytes bytes;
    GCR_TRY(stream.receive(bytes));
    GCR_ASSIGN(const FrameHeader header, decode(bytes));
    if (broken_) return health();  // an error of one lane breaks all
    if (header.sequence != lane.landed()) {
      return Error(Code::kProtocol,
                   fmt::format("the sender sent a frame out of sequence: {}, not {}",
                               header.sequence, lane.landed()));
    }
    if (header.type == FrameType::kEnd) {
      lane.finish();
      return {};
    }
    GCR_TRY(take_frame(stream, lane, header));
  }
}

Status TcpReceiver::Impl::take_frame(Stream& stream, LaneTable::Hold& lane,
                                     const FrameHeader& header) {
  if (header.type == FrameType::kWrite) {
    GCR_TRY(land(stream, header));
    lane.count_landed();
    if (!header.asks) return {};
  } else if (header.type != FrameType::kFlush) {
    return Error(Code::kProtocol, fmt::format("the sender sent a frame of type {}",
                                              static_cast<unsigned>(header.type)));
  }
  return stream.send(encode({.type = FrameType::kLanded, .sequence = lane.landed()}), {});
}

Status TcpReceiver::Impl::land(Stream& stream, const FrameHeader& header) {
  GCR_ASSIGN(const RegionTable::Pin pin,
             regions_.pin(header.region, header.offset, header.length_bytes));
  GCR_TRY(stream.receive(pin.bytes()));
  payload_bytes_.fetch_add(header.length_bytes, std::memory_order_relaxed);
  wire_bytes_.fetch_add(header.length_bytes + kHeaderBytes, std::memory_order_relaxed);
  writes_.fetch_add(1, std::memory_order_relaxed);
  if (!options_.on_landed) return {};
  // Whatever its code, it is not an error of the network.
  const Status taken = options_.on_landed(header.region, header.offset, header.length_bytes);
  return taken ? taken : fail(taken.error());
}

void TcpReceiver::Impl::cancel() {
  (void)fail(Error(Code::kCancelled, "the transfer was cancelled"));
  lanes_.cancel();
  const std::lock_guard lock(mutex_);
  for (const Connection& connection : connections_) connection.stream.shut_down();
}

Status TcpReceiver::Impl::health() {
  if (auto lost = lanes_.check(); !lost) return fail(lost.error());
  const std::lock_guard lock(mutex_);
  if (first_error_) return *first_error_;
  return {};
}

Statistics TcpReceiver::Impl::statistics() const {
  return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
          .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
          .writes = writes_.load(std::memory_order_relaxed),
          .reconnections = lanes_.reconnections()};
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

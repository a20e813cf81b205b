// The receiver's end over TCP. Each connection has a thread: it performs the handshake, claims the
// lane of its hello, and then receives frames straight into the regions or into places of the
// landing window. A lane outlives its connections and counts the frames that have landed. A new
// connection for a lane shuts the old one down and waits until its thread has released the lane;
// the welcome then tells the sender at which frame to continue. An error of the application, or a
// violation of the protocol, breaks all lanes; a network error costs only the connection.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "transport/lane_thread.h"
#include "transport/region_table.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp.h"
#include "transport/transfer.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Connections beyond max_lanes that may be in their handshake at one time.
constexpr std::size_t kMaxPendingConnections = 16;
// How long a broken connection waits for its sender to read the reason.
constexpr milliseconds kLinger{5000};

static_assert(kMaxFramePayloadBytes <= kPlaceBytes, "a frame lands in one place");

class FrameReceiver final : public TcpReceiver {
 public:
  explicit FrameReceiver(TcpReceiverOptions options) : options_(std::move(options)) {}
  ~FrameReceiver() override { cancel(); }

  Status add_connection(UniqueFd socket) override;
  unsigned lanes() const override;
  Status add_region(RegionId region, std::span<std::byte> bytes) override {
    return regions_.add(region, bytes);
  }
  Status open_window(LandingWindow window) override;
  Status add_windowed_region(RegionId region, std::uint64_t size_bytes) override;
  Status remove_region(RegionId region) override { return regions_.remove(region); }
  void cancel() override;
  Status health() const override;
  Statistics statistics() const override;

 private:
  struct Connection;

  /// A lane of the sender; it outlives its connections.
  struct Lane {
    std::uint64_t landed = 0;      ///< write frames; used by the holder's thread only
    std::uint64_t claims = 0;      ///< connections that have claimed it so far
    Connection* holder = nullptr;  ///< the connection that serves it
    std::optional<Error> lost;     ///< why it has no connection since `lost_at`
    steady_clock::time_point lost_at;
  };

  enum class Phase { kPending, kAccepted, kEnded };

  /// One connection. Only its thread uses the stream, except that any thread may shut it down; the
  /// other members are guarded by mutex_.
  struct Connection {
    explicit Connection(UniqueFd socket) : stream(std::move(socket)) {}
    Stream stream;
    Phase phase = Phase::kPending;
    Lane* lane = nullptr;  ///< the lane that it serves
    steady_clock::time_point since = steady_clock::now();
    std::jthread thread;
  };

  Status limit_pending();
  void run(Connection& connection);
  Status open(Connection& connection);
  Result<Lane*> find_lane(const Hello& hello);
  Status claim_lane(const Hello& hello, Connection& connection);
  void release_lane(Connection& connection, const Error& why);
  Status serve(Stream& stream, Lane& lane);
  Status handle_frame(Stream& stream, Lane& lane, const FrameHeader& header);
  Status land(Stream& stream, const FrameHeader& header);
  Status land_in_window(Stream& stream, const FrameHeader& header);
  void count(const FrameHeader& header) {
    counters_.add_bytes(header.length_bytes, kHeaderBytes);
    counters_.add_write();
  }
  Status application_result(const Status& status);
  static void send_error(Stream& stream, const Error& error, std::uint64_t landed);

  const TcpReceiverOptions options_;
  RegionTable regions_;
  OnArrived on_arrived_;               ///< set once, before the first region that needs it
  std::shared_ptr<PlacePool> places_;  ///< set together with on_arrived_, under mutex_
  Counters counters_;
  mutable FirstError broken_;

  mutable std::mutex mutex_;
  std::condition_variable lane_released_;  ///< notified when a connection releases or claims a lane
  std::optional<Uuid> session_;            ///< of the only sender; mutex_ guards this and all below
  std::vector<Lane> lanes_;                ///< fixed once the sender is known
  bool finished_ = false;                  ///< the sender has ended the transfer
  std::uint64_t reconnections_ = 0;
  std::list<Connection> connections_;  ///< destroyed first: its destructor joins the threads
};

/// Fails if too many connections are in their handshake; shuts down those whose handshake has taken
/// too long (the time limit of each single wait does not bound their sum). mutex_ is held.
Status FrameReceiver::limit_pending() {
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
  return Error(
      Code::kResourceExhausted,
      fmt::format("{} data connections are in their handshake, the most that may be", pending));
}

Status FrameReceiver::add_connection(UniqueFd socket) {
  if (options_.tls != nullptr && !options_.verify_peer) {
    return Error(Code::kInvalidArgument, "with TLS, verify_peer is required");
  }
  GCR_TRY(set_blocking(socket.get(), true));
  GCR_TRY(tune_socket(socket.get(), options_.peer_timeout));
  const std::lock_guard lock(mutex_);
  // Joins the threads of ended connections, which no longer need the mutex.
  std::erase_if(connections_, [](const Connection& one) { return one.phase == Phase::kEnded; });
  GCR_TRY(limit_pending());
  Connection& connection = connections_.emplace_back(std::move(socket));
  connection.thread = std::jthread([this, &connection] { run(connection); });
  return {};
}

/// The main function of a connection's thread.
void FrameReceiver::run(Connection& connection) {
  become_lane_thread("gcr-lane");
  Stream& stream = connection.stream;
  Error why(Code::kUnavailable, "the connection has ended");
  if (const Status opened = open(connection); !opened) {
    spdlog::warn("a data connection was refused: {}", opened.error().message());
    release_lane(connection, why);
    send_error(stream, opened.error(), 0);
  } else if (const Status served = serve(stream, *connection.lane); !served) {
    const bool lost = is_network(served.error()) && options_.reconnect_window.count() > 0;
    if (lost && !broken_) {
      why = served.error();
      spdlog::warn("a lane has lost its connection: {}", why.message());
    } else {
      send_error(stream, broken_.set(served.error()), connection.lane->landed);
    }
  }
  release_lane(connection, why);
  stream.shut_down();
  const std::lock_guard lock(mutex_);
  connection.phase = Phase::kEnded;
}

void FrameReceiver::send_error(Stream& stream, const Error& error, std::uint64_t landed) {
  const std::string payload = encode_error(error);
  (void)stream.send(encode({.type = FrameType::kError,
                            .length_bytes = static_cast<std::uint32_t>(payload.size()),
                            .sequence = landed}),
                    std::as_bytes(std::span(payload)));
  stream.linger(kLinger);
}

/// Performs the handshake, checks the hello, and answers with the welcome.
Status FrameReceiver::open(Connection& connection) {
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
  if (!same_token(stream.token_proof(options_.token), hello.token)) {
    return Error(Code::kPermissionDenied, "the data connection has the token of another transfer");
  }
  GCR_TRY(health());
  GCR_TRY(claim_lane(hello, connection));
  GCR_TRY(stream.set_timeout(milliseconds(0)));
  return stream.send(encode({.type = FrameType::kWelcome, .sequence = connection.lane->landed}),
                     {});
}

/// Finds the lane of `hello`; the first hello determines the only sender and its number of lanes.
/// mutex_ is held.
Result<FrameReceiver::Lane*> FrameReceiver::find_lane(const Hello& hello) {
  if (!session_) {
    if (hello.lanes > options_.max_lanes) {
      return Error(Code::kResourceExhausted,
                   fmt::format("this transfer has at most {} lanes, not {}", options_.max_lanes,
                               hello.lanes));
    }
    session_ = hello.session;
    lanes_.resize(hello.lanes);
  }
  if (*session_ != hello.session) {
    return Error(Code::kPermissionDenied, "this transfer has another sender");
  }
  if (hello.lanes != lanes_.size() || hello.lane >= lanes_.size()) {
    return Error(Code::kProtocol, fmt::format("the hello names lane {} of {}; the sender has {}",
                                              hello.lane, hello.lanes, lanes_.size()));
  }
  return &lanes_[hello.lane];
}

/// Gives the lane of `hello` to `connection`. Ends the connection that holds the lane, and waits
/// until that has released it.
Status FrameReceiver::claim_lane(const Hello& hello, Connection& connection) {
  std::unique_lock lock(mutex_);
  GCR_ASSIGN(Lane* const lane, find_lane(hello));
  const std::uint64_t claim = ++lane->claims;
  lane_released_.notify_all();  // wakes an older claim, which then fails
  if (lane->holder != nullptr) lane->holder->stream.shut_down();
  lane_released_.wait(lock,
                      [&] { return lane->holder == nullptr || lane->claims != claim || broken_; });
  GCR_TRY(broken_.status());
  if (lane->claims != claim) {
    return Error(Code::kUnavailable, "a newer connection takes this one's place");
  }
  if (lane->lost) ++reconnections_;
  lane->lost.reset();
  lane->holder = &connection;
  connection.lane = lane;
  connection.phase = Phase::kAccepted;
  return {};
}

/// Releases the connection's lane, if it holds one, and records `why` the lane has no connection.
void FrameReceiver::release_lane(Connection& connection, const Error& why) {
  const std::lock_guard lock(mutex_);
  Lane* const lane = std::exchange(connection.lane, nullptr);
  if (lane == nullptr) return;
  lane->holder = nullptr;
  lane->lost = why;
  lane->lost_at = steady_clock::now();
  lane_released_.notify_all();
}

/// Receives frames until kEnd.
Status FrameReceiver::serve(Stream& stream, Lane& lane) {
  for (;;) {
    HeaderBytes bytes;
    GCR_TRY(stream.receive(bytes));
    GCR_ASSIGN(const FrameHeader header, decode(bytes));
    if (broken_) return health();  // an error of one lane breaks all
    if (header.sequence != lane.landed) {
      return Error(Code::kProtocol,
                   fmt::format("the sender sent a frame out of sequence: {}, not {}",
                               header.sequence, lane.landed));
    }
    if (header.type == FrameType::kEnd) {
      const std::lock_guard lock(mutex_);
      finished_ = true;
      return {};
    }
    GCR_TRY(handle_frame(stream, lane, header));
  }
}

Status FrameReceiver::handle_frame(Stream& stream, Lane& lane, const FrameHeader& header) {
  if (header.type == FrameType::kWrite) {
    GCR_TRY(land(stream, header));
    ++lane.landed;
    if (!header.asks) return {};
  } else if (header.type != FrameType::kFlush) {
    return Error(Code::kProtocol, fmt::format("the sender sent a frame of type {}",
                                              static_cast<unsigned>(header.type)));
  }
  return stream.send(encode({.type = FrameType::kLanded, .sequence = lane.landed}), {});
}

Status FrameReceiver::land(Stream& stream, const FrameHeader& header) {
  GCR_ASSIGN(const RegionTable::Pin pin,
             regions_.pin(header.region, header.offset, header.length_bytes));
  if (pin.windowed()) return land_in_window(stream, header);
  GCR_TRY(stream.receive(pin.bytes()));
  count(header);
  if (!options_.on_landed) return {};
  return application_result(options_.on_landed(header.region, header.offset, header.length_bytes));
}

Status FrameReceiver::land_in_window(Stream& stream, const FrameHeader& header) {
  GCR_ASSIGN(Place place, places_->take(header.length_bytes));
  GCR_TRY(stream.receive(place.bytes()));
  count(header);
  return application_result(on_arrived_(header.region, header.offset, std::move(place)));
}

/// Breaks the transfer with an error of the application, so that it is never mistaken for a network
/// error, which would only cost the connection.
Status FrameReceiver::application_result(const Status& status) {
  return status ? status : broken_.set(status.error());
}

Status FrameReceiver::open_window(LandingWindow window) {
  GCR_TRY(window.check(options_.max_lanes));
  const std::lock_guard lock(mutex_);
  if (places_) return Error(Code::kInvalidArgument, "the landing window was opened before");
  on_arrived_ = std::move(window.on_arrived);
  places_ = std::make_shared<PlacePool>(window.bytes);
  return {};
}

Status FrameReceiver::add_windowed_region(RegionId region, std::uint64_t size_bytes) {
  if (!places_) return Error(Code::kInvalidArgument, "the landing window was not opened");
  return regions_.add_windowed(region, size_bytes);
}

void FrameReceiver::cancel() {
  (void)broken_.set(Error(Code::kCancelled, "the transfer was cancelled"));
  const std::lock_guard lock(mutex_);
  lane_released_.notify_all();
  if (places_) places_->close();
  for (const Connection& connection : connections_) connection.stream.shut_down();
}

Status FrameReceiver::health() const {
  const std::lock_guard lock(mutex_);
  const auto now = steady_clock::now();
  for (const Lane& lane : lanes_) {
    if (finished_ || !lane.lost || now - lane.lost_at < options_.reconnect_window) continue;
    return broken_.set(lane.lost->while_doing(
        fmt::format("lane {} of {} has lost its connection and got no other within {} ms",
                    &lane - &lanes_.front(), lanes_.size(), options_.reconnect_window.count())));
  }
  return broken_.status();
}

unsigned FrameReceiver::lanes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<unsigned>(
      std::ranges::count_if(lanes_, [](const Lane& lane) { return lane.holder != nullptr; }));
}

Statistics FrameReceiver::statistics() const {
  const std::lock_guard lock(mutex_);
  return counters_.statistics(reconnections_);
}

}  // namespace

std::unique_ptr<TcpReceiver> receive_tcp(TcpReceiverOptions options) {
  return std::make_unique<FrameReceiver>(std::move(options));
}

}  // namespace gcr::transport

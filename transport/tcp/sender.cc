#include "transport/tcp/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gcr::transport {

namespace {

constexpr unsigned kMaxLanes = 64;
// How long a lane whose socket failed may look for the receiver's last word.
constexpr std::chrono::milliseconds kLastWordWait{1000};

}  // namespace

Status SenderLane::open(const TcpOptions& options, unsigned lane) {
  GCR_TRY(stream_.set_timeout(options.connect_timeout));
  if (!options.preface.empty()) GCR_TRY(stream_.send(options.preface));
  if (options.tls != nullptr) {
    GCR_TRY(stream_.start_tls(options.tls, Stream::Side::kClient, options.verify_peer));
  }
  const HelloBytes hello = encode(Hello{.lane = static_cast<std::uint16_t>(lane),
                                        .lanes = static_cast<std::uint16_t>(options.lanes),
                                        .token = options.token});
  GCR_TRY(send({.type = FrameType::kHello, .length_bytes = kHelloBytes}, hello));
  GCR_TRY(expect(FrameType::kWelcome));
  return stream_.set_timeout(std::chrono::milliseconds(0));
}

Status SenderLane::send(FrameHeader header, std::span<const std::byte> payload) {
  header.sequence = frames_sent_++;
  if (auto sent = stream_.send(encode(header), payload); !sent) return why(sent.error());
  bytes_since_rekey_ += payload.size();
  if (bytes_since_rekey_ < rekey_bytes_) return {};
  bytes_since_rekey_ = 0;
  return stream_.rekey();
}

/// After a failed send: the receiver's reason if it gave one, else `error`.
Error SenderLane::why(Error error) {
  if (!stream_.set_timeout(kLastWordWait)) return error;
  auto header = receive_header();
  if (!header) return error;
  auto said = receive_error(*header);
  return said ? error : std::move(said).error();
}

Result<FrameHeader> SenderLane::receive_header() {
  HeaderBytes bytes;
  GCR_TRY(stream_.receive(bytes));
  GCR_ASSIGN(FrameHeader header, decode(bytes));
  if (header.sequence != frames_received_++) {
    return Error(Code::kProtocol, "the receiver sent a frame out of sequence");
  }
  return header;
}

/// If `header` announces an error, fails with it.
Status SenderLane::receive_error(const FrameHeader& header) {
  if (header.type != FrameType::kError) return {};
  std::array<std::byte, kMaxErrorBytes> payload;
  const auto text = std::span(payload).first(header.length_bytes);
  GCR_TRY(stream_.receive(text));
  return decode_error(text).while_doing("the receiver says");
}

Status SenderLane::expect(FrameType type) {
  GCR_ASSIGN(const FrameHeader header, receive_header());
  GCR_TRY(receive_error(header));
  if (header.type != type) {
    return Error(Code::kProtocol,
                 fmt::format("the receiver sent a frame of type {}, not {}",
                             static_cast<unsigned>(header.type), static_cast<unsigned>(type)));
  }
  return {};
}

Status SenderLane::write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (stream_.readable()) {  // unasked, the receiver speaks only to say what is wrong
    GCR_TRY(expect(FrameType::kError));
  }
  return send({.type = FrameType::kWrite,
               .region = region,
               .length_bytes = static_cast<std::uint32_t>(bytes.size()),
               .offset = offset},
              bytes);
}

Status SenderLane::start_flush() { return send({.type = FrameType::kFlush}, {}); }

Status SenderLane::finish_flush() { return expect(FrameType::kFlushed); }

Status SenderLane::say_end() { return send({.type = FrameType::kEnd}, {}); }

/// The right to use one lane, given back at the end of the scope.
class TcpChannel::Lease {
 public:
  Lease(TcpChannel& channel, std::size_t lane) : channel_(&channel), lane_(lane) {}
  Lease(Lease&& other) noexcept
      : channel_(std::exchange(other.channel_, nullptr)), lane_(other.lane_) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (channel_ != nullptr) channel_->give_back(lane_);
  }
  std::size_t lane() const { return lane_; }

 private:
  TcpChannel* channel_;
  std::size_t lane_;
};

TcpChannel::TcpChannel(std::string peer, std::vector<SenderLane> lanes)
    : peer_(std::move(peer)),
      lanes_(std::move(lanes)),
      busy_(lanes_.size()),
      wanted_(lanes_.size()),
      unflushed_(lanes_.size()) {}

TcpChannel::~TcpChannel() {
  if (failed_) return;
  for (SenderLane& lane : lanes_) {
    if (!lane.say_end()) return;
  }
}

TcpChannel::Lease TcpChannel::take_any() {
  std::unique_lock lock(mutex_);
  std::size_t lane = 0;
  freed_.wait(lock, [&] {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      lane = (next_ + i) % lanes_.size();
      if (!busy_[lane] && wanted_[lane] == 0) return true;
    }
    return false;
  });
  busy_[lane] = true;
  next_ = lane + 1;  // in turn, so that every lane is looked at for errors
  return {*this, lane};
}

TcpChannel::Lease TcpChannel::take(std::size_t lane) {
  std::unique_lock lock(mutex_);
  ++wanted_[lane];
  freed_.wait(lock, [&] { return !busy_[lane]; });
  --wanted_[lane];
  busy_[lane] = true;
  return {*this, lane};
}

void TcpChannel::give_back(std::size_t lane) {
  {
    const std::lock_guard lock(mutex_);
    busy_[lane] = false;
  }
  freed_.notify_all();
}

std::optional<Error> TcpChannel::broken() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return error_;
}

/// Breaks the channel with `error` unless it was broken before; gives the error that broke it.
Error TcpChannel::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) {
    error_ = error.code() == Code::kCancelled ? std::move(error) : error.while_doing(peer_);
    failed_.store(true, std::memory_order_release);
    for (const SenderLane& lane : lanes_) lane.shut_down();
  }
  return *error_;
}

Status TcpChannel::write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (auto error = broken()) return *error;
  if (bytes.empty()) return {};
  const Lease lease = take_any();
  GCR_TRY(write_frames(lease.lane(), region, offset, bytes));
  writes_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status TcpChannel::write_frames(std::size_t lane, RegionId region, std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  unflushed_[lane] = 1;
  while (!bytes.empty()) {
    const auto frame = bytes.first(std::min<std::size_t>(bytes.size(), kMaxFramePayloadBytes));
    pacer_.wait(frame.size());
    if (auto error = broken()) return *error;
    if (auto sent = lanes_[lane].write(region, offset, frame); !sent) return fail(sent.error());
    payload_bytes_.fetch_add(frame.size(), std::memory_order_relaxed);
    wire_bytes_.fetch_add(frame.size() + kHeaderBytes, std::memory_order_relaxed);
    offset += frame.size();
    bytes = bytes.subspan(frame.size());
  }
  return {};
}

Status TcpChannel::flush() {
  // All lanes are asked before the first answer is awaited: a flush costs one round trip. Flushes
  // take lanes in the same order and writes take only one, so nobody waits in a circle.
  std::vector<Lease> leases;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    leases.push_back(take(lane));
    if (auto error = broken()) return *error;
    if (unflushed_[lane] == 0) {
      leases.pop_back();
      continue;
    }
    if (auto asked = lanes_[lane].start_flush(); !asked) return fail(asked.error());
  }
  for (const Lease& lease : leases) {
    if (auto answered = lanes_[lease.lane()].finish_flush(); !answered) {
      return fail(answered.error());
    }
    unflushed_[lease.lane()] = 0;
  }
  if (auto error = broken()) return *error;
  return {};
}

void TcpChannel::cancel() {
  (void)fail(Error(Code::kCancelled, "the transfer was cancelled"));
  pacer_.limit(0);
}

Statistics TcpChannel::statistics() const {
  return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
          .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
          .writes = writes_.load(std::memory_order_relaxed),
          .reconnections = 0};
}

Result<std::unique_ptr<Channel>> connect(const std::string& host, std::uint16_t port,
                                         const TcpOptions& options) {
  if (options.lanes == 0 || options.lanes > kMaxLanes || options.token.size() > kMaxTokenBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a channel has 1 to {} lanes and a token of at most {} bytes",
                             kMaxLanes, kMaxTokenBytes));
  }
  if (options.tls != nullptr && !options.verify_peer) {
    return Error(Code::kInvalidArgument, "TLS needs a check of the peer's role");
  }
  const std::string peer = fmt::format("data connection to {} port {}", host, port);
  std::vector<SenderLane> lanes;
  for (unsigned lane = 0; lane < options.lanes; ++lane) {
    GCR_ASSIGN(UniqueFd socket, connect_socket(host, port, options.connect_timeout));
    GCR_TRY(tune_socket(socket.get(), options.peer_timeout));
    SenderLane& added = lanes.emplace_back(Stream(std::move(socket)), options.rekey_bytes);
    if (auto opened = added.open(options, lane); !opened) {
      return opened.error().while_doing(peer);
    }
  }
  return std::unique_ptr<Channel>(std::make_unique<TcpChannel>(peer, std::move(lanes)));
}

}  // namespace gcr::transport

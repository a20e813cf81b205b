#include "transport/tcp/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/lane_thread.h"

namespace gcr::transport {
namespace {

// The longest wait for the receiver when the transfer ends.
constexpr std::chrono::milliseconds kGoodbyeWait{1000};

SSL_CTX* hold(SSL_CTX* context) {
  if (context != nullptr) SSL_CTX_up_ref(context);
  return context;
}

}  // namespace

TcpChannel::TcpChannel(TcpOptions options, std::vector<Place> places)
    : options_(std::move(options)),
      tls_(hold(options_.tls), SSL_CTX_free),
      places_(std::move(places)) {
  for (unsigned number = 0; number < options_.lanes; ++number) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->number = static_cast<std::uint16_t>(number);
  }
}

TcpChannel::~TcpChannel() {
  end();
  wait_for_end();
  cancel();
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

/// Sends kEnd on each lane; the receiver answers by closing the connection.
void TcpChannel::end() {
  const std::lock_guard lock(mutex_);
  if (error_ || std::exchange(ending_, true)) return;
  changed_.notify_all();
  for (const auto& lane : lanes_) {
    if (!lane->connected) continue;
    if (!lane->connection->send_end(lane->log.next(), kGoodbyeWait)) lane->connection->shut_down();
  }
}

/// Waits until the receiver has closed its connections. Closing ours first could reset them, and
/// the receiver could lose the kEnd.
void TcpChannel::wait_for_end() {
  Lock lock(mutex_);
  if (error_) return;
  changed_.wait_for(lock, kGoodbyeWait, [this] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->ended || !lane->connected; });
  });
}

Error TcpChannel::with_address(const Lane& lane, const Error& error) const {
  return error.while_doing("data connection to " + describe(places_[lane.place].address));
}

/// Breaks the channel with `error` unless it was broken before; returns the error that broke it.
/// mutex_ is held.
Status TcpChannel::fail(Error error) {
  if (!error_) {
    error_ = std::move(error);
    for (const auto& lane : lanes_) {
      if (lane->connection) lane->connection->shut_down();
      lane->log.forget();
    }
    wake_up(stop_);
    pacer_.limit(0);
    freed_.notify_all();
    changed_.notify_all();
  }
  return *error_;
}

void TcpChannel::cancel() {
  const std::lock_guard lock(mutex_);
  (void)fail(Error(Code::kCancelled, "the transfer was cancelled"));
}

Status TcpChannel::write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) {
  WaitingWriter writer;
  const bool kept = bytes.size() <= kKeptWriteBytes;
  Status written;
  while (written && !bytes.empty()) {
    const auto frame = bytes.first(std::min<std::size_t>(bytes.size(), kMaxFramePayloadBytes));
    pacer_.wait(frame.size());
    written = write_frame(region, offset, frame, kept ? nullptr : &writer);
    offset += frame.size();
    bytes = bytes.subspan(frame.size());
  }
  return wait_landed(writer);
}

/// Sends one frame. The lane's log has it afterwards, even if the connection was lost.
Status TcpChannel::write_frame(RegionId region, std::uint64_t offset,
                               std::span<const std::byte> bytes, WaitingWriter* writer) {
  Lock lock(mutex_);
  Lane* lane = acquire_lane(lock, writer == nullptr ? bytes.size() : 0);
  if (lane == nullptr) return *error_;
  FrameHeader header{.type = FrameType::kWrite,
                     .region = region,
                     .length_bytes = static_cast<std::uint32_t>(bytes.size()),
                     .offset = offset,
                     .sequence = lane->log.next()};
  if (writer != nullptr) {
    header.asks = lane->log.add(region, offset, bytes, *writer).asks;
  } else {
    std::span<std::byte> copy;
    header.asks = lane->log.add_kept(region, offset, bytes.size(), copy).asks;
    lock.unlock();
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    lock.lock();
  }
  statistics_.payload_bytes += bytes.size();
  send_on(lock, *lane, header, bytes);
  finish_sending(lock, *lane);
  return {};
}

/// Waits until all frames of `writer` have landed. If the channel breaks, waits until no lane still
/// sends from the writer's bytes.
Status TcpChannel::wait_landed(WaitingWriter& writer) {
  Lock lock(mutex_);
  writer.landed.wait(lock, [&] { return writer.unlanded == 0 || error_; });
  if (!error_) {
    ++statistics_.writes;
    return {};
  }
  changed_.wait(lock, [this] {
    return std::none_of(lanes_.begin(), lanes_.end(),
                        [](const auto& lane) { return lane->resending; });
  });
  return *error_;
}

/// Waits for a free lane with room in its log, round-robin, and reserves it for one frame; nullptr
/// if the channel is broken.
TcpChannel::Lane* TcpChannel::acquire_lane(Lock& lock, std::size_t kept_bytes) {
  Lane* taken = nullptr;
  freed_.wait(lock, [&] {
    for (std::size_t i = 0; i < lanes_.size() && !error_; ++i) {
      Lane& lane = *lanes_[(next_lane_ + i) % lanes_.size()];
      if (!lane.connected || lane.sending || !lane.log.has_room(kept_bytes)) continue;
      taken = &lane;
      return true;
    }
    return error_.has_value();
  });
  if (taken == nullptr) return nullptr;
  next_lane_ = taken->number + 1U;
  taken->sending = true;
  return taken;
}

/// Sends a frame on a lane that the caller has reserved; releases the lock meanwhile. A lost
/// connection is replaced by the lane's thread.
void TcpChannel::send_on(Lock& lock, Lane& lane, const FrameHeader& header,
                         std::span<const std::byte> payload) {
  lock.unlock();
  const Status sent = lane.connection->send(header, payload);
  lock.lock();
  if (sent) {
    statistics_.wire_bytes += kHeaderBytes + payload.size();
    return;
  }
  // The sending and the lane's thread both see the failure; only the first gets the real reason.
  if (std::exchange(lane.connected, false)) lane.lost = sent.error();
  lane.connection->shut_down();
  if (!is_network(sent.error())) (void)fail(with_address(lane, sent.error()));
}

void TcpChannel::finish_sending(Lock& lock, Lane& lane) {
  if (std::exchange(lane.flush_asked, false) && lane.connected) {
    send_on(lock, lane, {.type = FrameType::kFlush, .sequence = lane.log.next()}, {});
  }
  lane.sending = false;
  freed_.notify_one();
  if (!lane.connected) changed_.notify_all();
}

/// Asks the receiver to confirm all frames of the lane. A lane without a connection asks after it
/// has reconnected.
void TcpChannel::ask(Lock& lock, Lane& lane) {
  if (lane.log.asked()) return;
  lane.log.ask_newest();
  if (!lane.connected) return;
  lane.flush_asked = true;
  if (std::exchange(lane.sending, true)) return;
  finish_sending(lock, lane);
}

Status TcpChannel::flush() {
  Lock lock(mutex_);
  std::array<std::uint64_t, kMaxLanes> until{};
  ++flushing_;
  for (const auto& lane : lanes_) until[lane->number] = lane->log.next();
  for (const auto& lane : lanes_) ask(lock, *lane);
  changed_.wait(lock, [&] {
    return error_ || std::all_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
             return lane->log.first() >= until[lane->number];
           });
  });
  --flushing_;
  if (error_) return *error_;
  return {};
}

Statistics TcpChannel::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

Result<std::unique_ptr<Channel>> connect(const std::vector<Address>& addresses,
                                         const TcpOptions& options,
                                         std::vector<std::string>* notes) {
  if (options.lanes == 0 || options.lanes > kMaxLanes || options.token.size() > kMaxTokenBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a channel has 1 to {} lanes and a token of at most {} bytes",
                             kMaxLanes, kMaxTokenBytes));
  }
  if (options.tls != nullptr && !options.verify_peer) {
    return Error(Code::kInvalidArgument, "with TLS, verify_peer is required");
  }
  std::vector<TcpChannel::Place> found;
  std::vector<std::string> met;
  for (const Address& address : addresses) {
    if (auto resolved = resolve(address)) {
      found.push_back({address, std::move(*resolved)});
    } else {
      met.push_back(resolved.error().message());
    }
  }
  if (found.empty()) {
    return Error(Code::kUnavailable, met.empty() ? "there is no address to connect to" : met[0]);
  }
  auto channel = std::make_unique<TcpChannel>(options, std::move(found));
  GCR_TRY(channel->connect(met));
  if (notes != nullptr) *notes = std::move(met);
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace gcr::transport

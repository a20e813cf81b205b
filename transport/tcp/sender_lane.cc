// The lanes of a TcpChannel: connects them, receives the receiver's answers, and replaces lost
// connections.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

#include "transport/lane_thread.h"
#include "transport/tcp/sender.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The pause before the first attempt to reconnect; it doubles with each attempt.
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{1000};
// Attempts are bounded so that each address can fail to answer this often within the window.
constexpr std::size_t kAttemptsPerPlace = 2;

Error cancelled() { return Error(Code::kCancelled, "the transfer has ended"); }

}  // namespace

Status TcpChannel::connect(std::vector<std::string>& notes) {
  GCR_ASSIGN(stop_, make_wake());
  std::vector<std::size_t> usable(places_.size());
  std::iota(usable.begin(), usable.end(), std::size_t{0});
  for (const auto& lane : lanes_) GCR_TRY(connect_lane(*lane, usable, notes));
  for (const auto& lane : lanes_) {
    lane->connected = true;
    lane->thread = std::thread([this, lane = lane.get()] { run(*lane); });
  }
  return {};
}

/// Connects one lane for the first time, to the usable places in turn; removes those that do not
/// answer from `usable`.
Status TcpChannel::connect_lane(Lane& lane, std::vector<std::size_t>& usable,
                                std::vector<std::string>& notes) {
  for (;;) {
    const auto at = usable.begin() + static_cast<std::ptrdiff_t>(lane.number % usable.size());
    const auto landed = open(lane, *at, options_.connect_timeout);
    if (landed) return lane.log.confirm(*landed);
    const Error& error = landed.error();
    const bool lost = is_network(error) && (!lane.connection || lane.connection->is_lost(error));
    if (!lost) return with_address(lane, error);
    if (usable.size() == 1) {
      return notes.empty()
                 ? with_address(lane, error)
                 : Error(error.code(), fmt::format("{}; {}", with_address(lane, error).message(),
                                                   fmt::join(notes, "; ")));
    }
    notes.push_back(
        fmt::format("{} is not used: {}", describe(places_[lane.place].address), error.message()));
    lane.connection.reset();
    usable.erase(at);
  }
}

/// Connects the lane to a place. Returns the number of the lane's frames that have landed.
Result<std::uint64_t> TcpChannel::open(Lane& lane, std::size_t place, milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    lane.place = place;
  }
  GCR_ASSIGN(UniqueFd socket, dial(places_[place].resolved, timeout, stop_.get()));
  GCR_TRY(tune_socket(socket.get(), options_.peer_timeout));
  {
    const std::lock_guard lock(mutex_);
    if (error_ || ending_) return cancelled();
    lane.connection = std::make_unique<SenderConnection>(std::move(socket), options_.rekey_bytes);
  }
  return lane.connection->open(options_,
                               {.lane = lane.number,
                                .lanes = static_cast<std::uint16_t>(lanes_.size()),
                                .session = session_,
                                .token = options_.token},
                               timeout);
}

/// The main function of a lane's thread.
void TcpChannel::run(Lane& lane) {
  become_lane_thread("gcr-lane");
  for (;;) {
    const Error ended = receive_answers(lane);
    const Status again = reconnect(lane, ended);
    if (again) continue;
    const std::lock_guard lock(mutex_);
    if (!ending_) (void)fail(again.error());
    lane.ended = true;
    changed_.notify_all();
    return;
  }
}

/// Receives confirmations until the connection ends or the receiver violates the protocol.
Error TcpChannel::receive_answers(Lane& lane) {
  for (;;) {
    const auto landed = lane.connection->receive_landed();
    if (!landed) return landed.error();
    const std::lock_guard lock(mutex_);
    if (error_) return *error_;
    if (auto confirmed = lane.log.confirm(*landed); !confirmed) return confirmed.error();
    freed_.notify_one();
    if (flushing_ > 0) changed_.notify_all();
  }
}

/// Replaces a connection that ended with `why`, and resends all unconfirmed frames.
Status TcpChannel::reconnect(Lane& lane, Error why) {
  GCR_TRY(stop_using(lane, why));
  spdlog::warn("{}: reconnecting", with_address(lane, why).message());
  GCR_ASSIGN(const std::uint64_t landed, reopen(lane, why));
  return resume(lane, landed);
}

/// Waits until no thread uses the connection. If a sending thread failed first, `why` becomes its
/// error. Fails if another connection would not help.
Status TcpChannel::stop_using(Lane& lane, Error& why) {
  Lock lock(mutex_);
  lane.connected = false;
  lane.connection->shut_down();
  changed_.wait(lock, [&] { return !lane.sending; });
  if (error_ || ending_) return cancelled();
  const auto met = std::exchange(lane.lost, std::nullopt);
  if (!lane.connection->is_lost(why)) return with_address(lane, why);
  if (met) why = *met;
  return options_.reconnect_window.count() > 0 ? Status{} : with_address(lane, why);
}

/// Tries all places in turn, beginning with the current one, until one answers or the reconnect
/// window ends.
Result<std::uint64_t> TcpChannel::reopen(Lane& lane, const Error& lost) {
  const milliseconds window = options_.reconnect_window;
  const auto deadline = steady_clock::now() + window;
  const auto attempts = kAttemptsPerPlace * places_.size();
  const auto limit = std::max(milliseconds(1),
                              std::min<milliseconds>(window / attempts, options_.connect_timeout));
  const std::size_t home = lane.place;
  const Error reason = with_address(lane, lost);
  milliseconds pause = kFirstPause;
  for (std::size_t attempt = 0;; ++attempt) {
    {
      Lock lock(mutex_);
      if (changed_.wait_for(lock, pause, [this] { return error_ || ending_; })) return cancelled();
    }
    auto landed = open(lane, (home + attempt) % places_.size(), limit);
    if (landed) return landed;
    if (!lane.connection->is_lost(landed.error())) {
      return with_address(lane, landed.error());
    }
    pause = std::min(2 * pause, kLongestPause);
    if (steady_clock::now() + pause >= deadline) {
      return Error(reason.code(),
                   fmt::format("{}; no other connection within {} ms: {}", reason.message(),
                               window.count(), with_address(lane, landed.error()).message()));
    }
  }
}

/// Resends the frames from number `landed` on over the new connection, and reopens the lane.
Status TcpChannel::resume(Lane& lane, std::uint64_t landed) {
  Lock lock(mutex_);
  if (error_) return *error_;
  if (auto confirmed = lane.log.confirm(landed); !confirmed) {
    return with_address(lane, confirmed.error());
  }
  lane.log.ask_only_newest();
  ++statistics_.reconnections;
  changed_.notify_all();  // the confirmation may complete a flush
  lane.connected = lane.sending = lane.resending = true;
  for (auto number = lane.log.first(); number < lane.log.next() && lane.connected; ++number) {
    const FrameLog::Frame frame = lane.log.at(number);
    send_on(lock, lane,
            {.type = FrameType::kWrite,
             .asks = frame.asks,
             .region = frame.region,
             .length_bytes = static_cast<std::uint32_t>(frame.bytes.size()),
             .offset = frame.offset,
             .sequence = number},
            frame.bytes);
  }
  lane.resending = false;
  finish_sending(lock, lane);
  freed_.notify_all();
  changed_.notify_all();
  return {};
}

}  // namespace gcr::transport

// The source's end of the control channel between two agents, with heartbeats: an end that receives
// nothing for `silence` treats the other as lost (proto/PROTOCOL.md, "Heartbeats"). All of this
// belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::migration {

/// The number of heartbeats that an end sends within the other's `silence`.
inline constexpr int kBeatsPerSilence = 5;

/// Holds one token, which gives its receiver the turn. The value is unused; asio requires one.
using Token = asio::experimental::channel<void(std::error_code, bool)>;

/// Sends one request at a time, and heartbeats between requests. Owned by a
/// shared_ptr, since the heartbeats may end shortly after close().
class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  PeerLink(asio::io_context& io, std::unique_ptr<control::ControlChannel> channel,
           std::chrono::milliseconds silence);

  /// Sends a request and gives its reply, or the Error of a Failure. Waits as long as the peer
  /// sends heartbeats. kTimeout if the peer is silent, kUnavailable if the connection is lost;
  /// every later call fails too. kProtocol if the peer answers with another message.
  asio::awaitable<Result<proto::Envelope>> call(proto::Envelope request);

  /// Starts the heartbeats, which are sent while no request is waiting. `on_lost` is called once if
  /// one is not answered, but not after close().
  void watch(std::function<void(const Error&)> on_lost);

  /// Sets the source's pause, which heartbeats carry; the next one is sent at once.
  void set_paused(bool paused);

  /// Closes the connection if a request is waiting for its reply: the call fails at once.
  void abandon_call();

  const control::PeerIdentity& peer() const { return channel_->peer(); }

  /// Closes the connection, and ends the heartbeats.
  void close();

 private:
  asio::awaitable<void> beat(std::function<void(const Error&)> on_lost);

  std::unique_ptr<control::ControlChannel> channel_;
  const std::chrono::milliseconds silence_;
  Token turn_;  ///< to send a request
  asio::steady_timer pulse_;
  unsigned calls_ = 0;  ///< calls that wait for their turn or for a reply
  bool paused_ = false;
  bool closed_ = false;
  std::optional<Error> lost_;
};

}  // namespace gcr::migration

// The control channel between two agents, from either side, with heartbeats: if a side hears
// nothing from the other for `silence`, it gives the other up (proto/PROTOCOL.md, "Heartbeats").
// All of this belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "migrate-agent/worker/runtime/cancellation.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::migration {

/// How many signs of life a side sends within the other's `silence`.
inline constexpr int kBeatsPerSilence = 5;

/// The source's end: one request at a time, and signs of life in between.
class PeerLink {
 public:
  PeerLink(asio::io_context& io, std::unique_ptr<control::ControlChannel> channel,
           std::chrono::milliseconds silence);
  /// Closes the connection.
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  /// Sends a request and gives its own reply, or the Error of a Failure. Takes any time while the
  /// peer sends signs of life. kTimeout if it is silent, kUnavailable if it is gone; no call
  /// succeeds after either. kProtocol if it answers with anything else.
  asio::awaitable<Result<proto::Envelope>> call(const proto::Envelope& request);

  /// From now on asks for signs of life whenever no request is waiting. `on_lost` is called once if
  /// none comes; not after the link is destroyed.
  void watch(std::function<void(const Error&)> on_lost);

  /// What signs of life tell of the source: first the next one, which is sent at once.
  void set_paused(bool paused);

  /// Closes the connection if a request is waiting for its reply: the call fails at once.
  void abandon_call();

  const control::PeerIdentity& peer() const;
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// The destination's end: sends Alive on `channel` at intervals, from construction until stop() has
/// been awaited. Nothing else may send meanwhile. If the source is gone, it requests
/// `cancellation`, which must outlive stop().
class AliveBeat {
 public:
  AliveBeat(asio::io_context& io, control::ControlChannel& channel,
            std::chrono::milliseconds silence, worker::Cancellation& cancellation);
  asio::awaitable<void> stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::migration

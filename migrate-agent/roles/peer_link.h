// The control channel between two agents, seen from either side, with the certainty that the other
// side is there: each hears something from the other at least every `silence`, or takes it for gone
// (proto/PROTOCOL.md, "Heartbeats"). All of this belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// How often a side says something, as a share of what the other waits for.
inline constexpr int kBeatsPerSilence = 5;

inline constexpr std::chrono::seconds kConnectTimeout{10};  ///< to the peer

/// The source's end: one request at a time, and signs of life in between.
class PeerLink {
 public:
  PeerLink(asio::io_context& io, std::unique_ptr<control::ControlChannel> channel,
           std::chrono::milliseconds silence);
  /// Closes the connection.
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  /// Sends a request and gives its reply, or the Error of a Failure. It may take as long as the
  /// peer says that it is alive. kTimeout if it is silent, kUnavailable if it is gone; no call
  /// succeeds after either.
  asio::awaitable<Result<proto::Envelope>> call(const proto::Envelope& request);

  /// From now on asks for a sign of life whenever nothing else is asked. `on_lost` is called once
  /// if none comes; not after the link is destroyed.
  void watch(std::function<void(const Error&)> on_lost);

  /// Closes the connection if a request is waiting for its reply: the call fails at once.
  void abandon_call();

  const control::PeerIdentity& peer() const;
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// The destination's end: says Alive on `channel` again and again from construction until stop()
/// has been awaited. Nobody else may send meanwhile.
class AliveBeat {
 public:
  AliveBeat(asio::io_context& io, control::ControlChannel& channel,
            std::chrono::milliseconds silence);
  asio::awaitable<void> stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::agent

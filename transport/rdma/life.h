// Whether the peer of a queue pair is there.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "transport/rdma/queue_pair.h"

namespace gcr::transport::rdma {

/// Used by the thread that takes the completions. Devices give up a silent peer by themselves, but
/// not all of them in every case: soft RoCE retries forever while the link is down.
class Life {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Life(std::chrono::milliseconds peer_timeout) : peer_timeout_(peer_timeout) {}

  /// How often to check.
  std::chrono::milliseconds interval() const { return peer_timeout_ / 4; }

  void take(const Completion& completion) {
    if (!completion.succeeded()) return;
    heard_ = Clock::now();
    if (completion.kind == Completion::Kind::kAlive) asked_ = false;
  }

  /// After some silence makes the peer's device answer. Fails with kUnavailable if nothing came for
  /// `peer_timeout` nevertheless.
  Status look(QueuePair& queue_pair, std::string_view peer) {
    const auto silence = Clock::now() - heard_;
    if (silence < interval()) return {};
    if (!asked_) {
      asked_ = true;
      return queue_pair.ask_for_life();
    }
    if (silence < peer_timeout_) return {};
    return Error(Code::kUnavailable, fmt::format("{} vanished: nothing came from it for {} ms",
                                                 peer, peer_timeout_.count()));
  }

 private:
  std::chrono::milliseconds peer_timeout_;
  Clock::time_point heard_ = Clock::now();
  bool asked_ = false;
};

}  // namespace gcr::transport::rdma

// One connection of a sender's lane: sends frames and receives the receiver's answers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>

#include "transport/tcp/frame.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {

/// A connection. One thread may send while another receives; any thread may call shut_down().
class SenderConnection {
 public:
  SenderConnection(UniqueFd socket, std::uint64_t rekey_bytes)
      : stream_(std::move(socket)), rekey_bytes_(rekey_bytes) {}

  /// Sends the preface, performs the handshake and sends the hello. Returns the number of frames of
  /// this lane that have landed. `timeout` bounds each wait for the receiver.
  Result<std::uint64_t> open(const TcpOptions& options, const Hello& hello,
                             std::chrono::milliseconds timeout);

  /// Sends one frame. After a failure, earlier answers of the receiver can still be received.
  Status send(const FrameHeader& header, std::span<const std::byte> payload);

  /// Waits for the next confirmation and returns the number of frames that have landed. Fails with
  /// the receiver's error.
  Result<std::uint64_t> receive_landed() { return receive(FrameType::kLanded); }

  /// Sends kEnd; blocks for at most `limit`.
  Status send_end(std::uint64_t sequence, std::chrono::milliseconds limit);

  /// Whether another connection may succeed after this one failed with `error`: the network failed,
  /// and the receiver has not sent an error.
  bool is_lost(const Error& error) const { return !refused_ && is_network(error); }

  void shut_down() const { stream_.shut_down(); }

 private:
  Status greet(const TcpOptions& options, const Hello& hello);
  Result<std::uint64_t> receive(FrameType type);
  Error receive_error(const FrameHeader& header);

  Stream stream_;
  std::uint64_t rekey_bytes_;
  std::uint64_t bytes_since_rekey_ = 0;
  std::atomic<bool> refused_ = false;  ///< the receiver has sent an error
};

}  // namespace gcr::transport

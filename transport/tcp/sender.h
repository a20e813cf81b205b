// The sender's end over TCP.
//
// Each caller of write() sends its frames itself, on the next free lane (sender.cc). Each lane has
// a thread that receives the receiver's confirmations, and opens a new connection when the old one
// is lost (sender_lane.cc). A frame stays in the lane's FrameLog until it is confirmed, so that it
// can be sent again. The first error that a new connection cannot repair breaks the channel.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/base/uuid.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/tcp/frame_log.h"
#include "transport/tcp/sender_connection.h"
#include "transport/tcp/tcp.h"
#include "transport/transfer.h"

namespace gcr::transport {

class TcpChannel final : public Channel {
 public:
  /// An address of the receiver, resolved once.
  struct Place {
    Address address;
    std::vector<SocketAddress> resolved;
  };

  /// Keeps a reference to the TLS context of `options`. `places` must not be empty.
  TcpChannel(TcpOptions options, std::vector<Place> places);
  /// Ends the transfer if the channel is intact, which takes a round trip, at most a second.
  ~TcpChannel() override;

  /// Connects all lanes; call once, before all other methods. Adds a sentence to `notes` for each
  /// address that does not answer.
  Status connect(std::vector<std::string>& notes);

  Status add_source(std::span<const std::byte> /*bytes*/) override { return {}; }
  Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status flush() override;
  void end() override;
  void limit_rate(std::uint64_t bytes_per_second) override { pacer_.limit(bytes_per_second); }
  void cancel() override;
  unsigned useful_writers() const override { return 2 * static_cast<unsigned>(lanes_.size()); }
  Statistics statistics() const override;

 private:
  /// One lane. Guarded by mutex_, except where a member says otherwise.
  struct Lane {
    std::uint16_t number = 0;
    FrameLog log;
    std::size_t place = 0;  ///< index in places_ of the connection's address
    /// Replaced by the lane's thread only, while no thread sends.
    std::unique_ptr<SenderConnection> connection;
    bool connected = false;
    std::optional<Error> lost;  ///< why the connection was lost, if a caller noticed it first
    bool sending = false;       ///< a thread sends a frame, or resends the log
    bool resending = false;     ///< its thread resends the log, and so reads writers' memory
    bool flush_asked = false;   ///< the sending thread must ask for a confirmation afterwards
    bool ended = false;         ///< its thread has finished
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  // Callers' threads (sender.cc).
  Status write_frame(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes,
                     WaitingWriter* writer);
  Status wait_landed(WaitingWriter& writer);
  Lane* acquire_lane(Lock& lock, std::size_t kept_bytes);
  void send_on(Lock& lock, Lane& lane, const FrameHeader& header,
               std::span<const std::byte> payload);
  void ask(Lock& lock, Lane& lane);
  void finish_sending(Lock& lock, Lane& lane);
  void wait_for_end();
  Status fail(Error error);
  Error with_address(const Lane& lane, const Error& error) const;

  // Lanes' threads (sender_lane.cc).
  Status connect_lane(Lane& lane, std::vector<std::size_t>& usable,
                      std::vector<std::string>& notes);
  Result<std::uint64_t> open(Lane& lane, std::size_t place, std::chrono::milliseconds timeout);
  void run(Lane& lane);
  Error receive_answers(Lane& lane);
  Status reconnect(Lane& lane, Error why);
  Status stop_using(Lane& lane, Error& why);
  Result<std::uint64_t> reopen(Lane& lane, const Error& lost);
  Status resume(Lane& lane, std::uint64_t landed);

  TcpOptions options_;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> tls_;
  const std::vector<Place> places_;
  const Uuid session_ = Uuid::random();
  UniqueFd stop_;  ///< readable once the channel is broken
  Pacer pacer_;

  mutable std::mutex mutex_;
  std::condition_variable freed_;             ///< a lane became able to send a frame
  std::condition_variable changed_;           ///< any other change that a thread waits for
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< fixed; the lanes are guarded by mutex_
  std::size_t next_lane_ = 0;                 ///< guarded by mutex_
  unsigned flushing_ = 0;                     ///< callers in flush; guarded by mutex_
  bool ending_ = false;                       ///< the transfer was ended; guarded by mutex_
  std::optional<Error> error_;                ///< guarded by mutex_
  Statistics statistics_;                     ///< guarded by mutex_
};

}  // namespace gcr::transport

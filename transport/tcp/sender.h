// The sender's end over TCP: hands frames to free lanes, and remembers the first error.
//
// Callers send their frames themselves, on whichever lane is free; each lane has a thread that
// takes in the receiver's answers, and makes the connection again when it is lost (sender_lane.cc).
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
#include "transport/pacer.h"
#include "transport/tcp/frame_log.h"
#include "transport/tcp/sender_connection.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {

class TcpChannel final : public Channel {
 public:
  /// Where the receiver is, looked up once.
  struct Place {
    Address address;
    std::vector<SocketAddress> resolved;
  };

  /// Holds on to the TLS context of `options`. There is a place.
  TcpChannel(TcpOptions options, std::vector<Place> places);
  /// Ends the transfer if the channel is intact, which takes a round trip, at most a second.
  ~TcpChannel() override;

  /// Connects all lanes; once, before anything else. Says in `notes` which addresses do not answer.
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
  /// Guarded by mutex_, except where said.
  struct Lane {
    std::uint16_t number = 0;
    FrameLog log;
    std::size_t place = 0;  ///< of the connection, in places_
    /// Replaced by the lane's thread alone, while nobody sends; used by it and by the sender.
    std::unique_ptr<SenderConnection> connection;
    bool connected = false;
    std::optional<Error> lost;  ///< why it is not, if a caller noticed it first
    bool sending = false;       ///< a thread sends a frame on it, or the log again
    bool resending = false;     ///< its thread sends the log again: writers' bytes are in use
    bool flush_asked = false;   ///< the sending thread shall ask for an answer afterwards
    bool ended = false;         ///< its thread will do nothing more
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  // Callers' threads (sender.cc).
  Status write_frame(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes,
                     WaitingWriter* writer);
  Status wait_landed(WaitingWriter& writer);
  Lane* take_lane(Lock& lock, std::size_t kept_bytes);
  void send_on(Lock& lock, Lane& lane, const FrameHeader& header,
               std::span<const std::byte> payload);
  void ask(Lock& lock, Lane& lane);
  void finish_sending(Lock& lock, Lane& lane);
  void wait_for_end();
  Status fail(Error error);
  Status fail_locked(Error error);
  Error named(const Lane& lane, const Error& error) const;

  // Lanes' threads (sender_lane.cc).
  Status connect_lane(Lane& lane, std::vector<std::size_t>& usable,
                      std::vector<std::string>& notes);
  Result<std::uint64_t> open(Lane& lane, std::size_t place, std::chrono::milliseconds timeout);
  void run(Lane& lane);
  Error receive_answers(Lane& lane);
  Status make_again(Lane& lane, Error why);
  Status stop_using(Lane& lane, Error& why);
  Result<std::uint64_t> reopen(Lane& lane, const Error& lost);
  Status resume(Lane& lane, std::uint64_t landed);

  TcpOptions options_;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> tls_;
  const std::vector<Place> places_;
  const Uuid session_ = Uuid::random();
  UniqueFd stop_;  ///< awake once the channel is broken
  Pacer pacer_;

  mutable std::mutex mutex_;
  std::condition_variable freed_;             ///< a lane can take a frame that could not before
  std::condition_variable changed_;           ///< anything else that a thread may wait for
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< fixed; the lanes are guarded by mutex_
  std::size_t next_lane_ = 0;                 ///< guarded by mutex_
  unsigned flushing_ = 0;                     ///< callers in flush; guarded by mutex_
  bool ending_ = false;                       ///< the transfer was ended; guarded by mutex_
  std::optional<Error> error_;                ///< guarded by mutex_
  Statistics statistics_;                     ///< guarded by mutex_
};

}  // namespace gcr::transport

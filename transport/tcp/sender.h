// The sender's end over TCP: hands free lanes to callers, and remembers the first error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/pacer.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {

/// One accepted connection of a sender. Used by one thread at a time; shut_down() by any.
class SenderLane {
 public:
  SenderLane(Stream stream, std::uint64_t rekey_bytes)
      : stream_(std::move(stream)), rekey_bytes_(rekey_bytes) {}

  /// Preface, handshake, hello, welcome.
  Status open(const TcpOptions& options, unsigned lane);

  /// Sends one write frame of at most kMaxFramePayloadBytes. Before it, takes in an error that the
  /// receiver has sent meanwhile.
  Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes);

  Status start_flush();
  Status finish_flush();
  Status say_end();

  void shut_down() const { stream_.shut_down(); }

 private:
  Status send(FrameHeader header, std::span<const std::byte> payload);
  Result<FrameHeader> receive_header();
  Status expect(FrameType type);
  Status receive_error(const FrameHeader& header);
  Error why(Error error);

  Stream stream_;
  std::uint64_t rekey_bytes_;
  std::uint64_t bytes_since_rekey_ = 0;
  std::uint64_t frames_sent_ = 0;
  std::uint64_t frames_received_ = 0;
};

class TcpChannel : public Channel {
 public:
  /// `peer` begins every error: "data connection to ...".
  TcpChannel(std::string peer, std::vector<SenderLane> lanes);
  ~TcpChannel() override;

  Status add_source(std::span<const std::byte> /*bytes*/) override { return {}; }
  Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status flush() override;
  void limit_rate(std::uint64_t bytes_per_second) override { pacer_.limit(bytes_per_second); }
  void cancel() override;
  unsigned useful_writers() const override { return static_cast<unsigned>(lanes_.size()); }
  Statistics statistics() const override;

 private:
  class Lease;

  Lease take_any();
  Lease take(std::size_t lane);
  void give_back(std::size_t lane);
  std::optional<Error> broken() const;
  Error fail(Error error);
  Status write_frames(std::size_t lane, RegionId region, std::uint64_t offset,
                      std::span<const std::byte> bytes);

  const std::string peer_;
  Pacer pacer_;
  std::vector<SenderLane> lanes_;

  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<bool> busy_;            ///< guarded by mutex_; a busy lane belongs to one thread
  std::vector<unsigned> wanted_;      ///< flushes that wait for just this lane; guarded by mutex_
  std::vector<char> unflushed_;       ///< belongs to whoever has the lane
  std::size_t next_ = 0;              ///< guarded by mutex_
  std::optional<Error> error_;        ///< guarded by mutex_
  std::atomic<bool> failed_ = false;  ///< error_ is set

  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
};

}  // namespace gcr::transport

// What a lane has sent and the receiver has not confirmed yet: what a new connection may have to
// send again.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/raw_bytes.h"
#include "src/base/result.h"
#include "src/base/units.h"
#include "transport/channel.h"
#include "transport/tcp/frame.h"

namespace gcr::transport {

/// A write of at most this size is kept by the lane and returns at once; a larger one returns when
/// the receiver has it.
inline constexpr std::size_t kKeptWriteBytes = 64 * kKiB;

/// A writer that waits until its frames have landed. Guarded as the log is.
struct WaitingWriter {
  unsigned unlanded = 0;
  std::condition_variable landed;  ///< notified when `unlanded` reaches 0, and when it never will
};

/// The write frames of one lane, numbered from 0, from the oldest that may not have landed to the
/// newest. Bounded in frames, in kept bytes and in answers that the receiver owes; takes all its
/// memory when it is made. Not thread-safe.
class FrameLog {
 public:
  static constexpr std::size_t kMaxFrames = 1024;
  static constexpr std::size_t kMaxKeptBytes = kMiB;
  static constexpr unsigned kMaxAsks = 32;

  struct Frame {
    RegionId region = 0;
    bool asks = false;  ///< the receiver was, or will be, asked to confirm this one
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;  ///< the writer's, or the log's own
    WaitingWriter* writer = nullptr;   ///< nullptr: bytes are kept
    std::uint64_t kept_end = 0;        ///< where the kept bytes end
  };

  FrameLog();

  /// Whether a frame that keeps `kept_bytes` (0: none) can be added.
  bool has_room(std::size_t kept_bytes) const;

  /// Adds a frame whose `writer` waits until it has landed; that is asked for. There must be room.
  const Frame& add(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes,
                   WaitingWriter& writer);

  /// Adds a frame whose bytes the caller copies to `copy_to` before the frame may be sent again;
  /// the space is the frame's until it has landed. Some of these frames ask. There must be room.
  const Frame& add_kept(RegionId region, std::uint64_t offset, std::size_t length_bytes,
                        std::span<std::byte>& copy_to);

  /// Whether the newest frame asks, or nothing is unconfirmed.
  bool asked() const { return first_ == next_ || at(next_ - 1).asks; }
  /// There must be an unconfirmed frame.
  void ask_newest();

  /// The receiver says that `landed` frames have landed. Fails with kProtocol if that is
  /// impossible.
  Status confirm(std::uint64_t landed);

  /// Before all unconfirmed frames are sent again: only the newest asks.
  void ask_only_newest();

  /// Forgets all frames, and wakes their writers.
  void forget();

  std::uint64_t first() const { return first_; }  ///< the oldest unconfirmed frame
  std::uint64_t next() const { return next_; }    ///< the number of the frame to come
  const Frame& at(std::uint64_t number) const { return frames_[number % kMaxFrames]; }

 private:
  std::uint64_t place(std::size_t length_bytes) const;
  Frame& push(RegionId region, std::uint64_t offset);
  Frame& slot(std::uint64_t number) { return frames_[number % kMaxFrames]; }

  std::vector<Frame> frames_;
  RawBytes kept_;
  std::uint64_t kept_from_ = 0;  ///< positions in an endless sequence of stores
  std::uint64_t kept_to_ = 0;
  std::uint64_t kept_asked_ = 0;    ///< what was kept up to here was asked about
  std::uint64_t frames_asked_ = 0;  ///< frames up to here were asked about
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  unsigned asks_ = 0;
};

}  // namespace gcr::transport

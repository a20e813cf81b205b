// The frames that a lane has sent and the receiver has not confirmed. A new connection sends them
// again.
//
// Frames are kept in a ring, numbered per lane. A small write is copied to a second ring of bytes
// and returns at once; a large write stays in its caller's memory, and the caller waits until the
// frame has landed. The receiver confirms only on request, so some small frames and every large one
// ask it to; a confirmation covers all earlier frames, and frees their entries and bytes.
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

/// The largest write that the lane copies, so that it returns at once; a larger one returns when
/// the receiver has it.
inline constexpr std::size_t kKeptWriteBytes = 64 * kKiB;

/// A writer that waits until its frames have landed. Guarded by the log's mutex.
struct WaitingWriter {
  unsigned unlanded = 0;
  std::condition_variable landed;  ///< notified when `unlanded` is 0, or the frames were dropped
};

/// The unconfirmed write frames of one lane, oldest first, numbered from 0. Bounded in frames, in
/// kept bytes and in outstanding confirmations; allocates all its memory in the constructor. Not
/// thread-safe.
class FrameLog {
 public:
  static constexpr std::size_t kMaxFrames = 1024;
  static constexpr std::size_t kMaxKeptBytes = kMiB;
  static constexpr unsigned kMaxAsks = 32;

  struct Frame {
    RegionId region = 0;
    bool asks = false;  ///< the frame asks the receiver to confirm it
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;  ///< in the writer's memory, or in the log's
    WaitingWriter* writer = nullptr;   ///< nullptr: the log has a copy of the bytes
    std::uint64_t kept_end = 0;        ///< position at which the copy ends
  };

  FrameLog();

  /// Whether a frame that keeps `kept_bytes` (0: none) can be added.
  bool has_room(std::size_t kept_bytes) const;

  /// Adds a frame whose `writer` waits until it has landed; the frame asks for a confirmation.
  /// has_room(0) must be true.
  const Frame& add(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes,
                   WaitingWriter& writer);

  /// Adds a frame whose bytes the caller copies to `copy_to` before the frame may be sent again;
  /// the log keeps the copy until the frame has landed. Some of these frames ask for a
  /// confirmation. has_room(length_bytes) must be true.
  const Frame& add_kept(RegionId region, std::uint64_t offset, std::size_t length_bytes,
                        std::span<std::byte>& copy_to);

  /// Whether the newest frame asks for a confirmation, or no frame is unconfirmed.
  bool asked() const { return first_ == next_ || at(next_ - 1).asks; }
  /// Makes the newest frame ask for a confirmation; there must be an unconfirmed frame.
  void ask_newest();

  /// Removes the frames before number `landed`, which the receiver confirmed, and wakes their
  /// writers. Fails with kProtocol if the number is impossible.
  Status confirm(std::uint64_t landed);

  /// Makes only the newest frame ask; call before all unconfirmed frames are sent again.
  void ask_only_newest();

  /// Removes all frames, and wakes their writers.
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
  std::uint64_t kept_from_ = 0;  ///< kept positions only grow; modulo the store's size
  std::uint64_t kept_to_ = 0;
  std::uint64_t kept_asked_ = 0;    ///< a confirmation was requested for the copies up to here
  std::uint64_t frames_asked_ = 0;  ///< a confirmation was requested for the frames up to here
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  unsigned asks_ = 0;
};

}  // namespace gcr::transport

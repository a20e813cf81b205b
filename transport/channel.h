// The transport's contract: a sender writes bytes one-sidedly into regions of a receiver.
//
// The sender addresses (region, offset); the receiver registered its regions beforehand and never
// copies: bytes are read from the wire straight into place, which is the region's own memory or the
// landing window. A transport knows nothing of CUDA, CRIU, Protobuf or agents. Every transport
// passes the conformance suite in tests/conformance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "src/base/result.h"
#include "transport/landing_window.h"

namespace gcr::transport {

/// The most lanes that one transfer may have, on any transport.
inline constexpr unsigned kMaxLanes = 64;

/// Counters of a channel or a receiver since its start.
struct Statistics {
  std::uint64_t payload_bytes = 0;  ///< each byte of a write once, however often it was sent
  std::uint64_t wire_bytes = 0;     ///< payload and headers, before encryption, every time
  std::uint64_t writes = 0;
  std::uint64_t reconnections = 0;  ///< lost connections that were replaced
};

/// The sender's end of one transfer. Thread-safe unless a method says otherwise.
class Channel {
 public:
  virtual ~Channel() = default;

  /// Announces that many writes will send from `bytes`, which must stay mapped until the channel is
  /// destroyed. A transport that sends from registered memory registers `bytes`, and copies memory
  /// that was not announced through a buffer of its own. Other transports do nothing.
  virtual Status add_source(std::span<const std::byte> bytes) = 0;

  /// Sends `bytes` to `offset` of `region`. Returns when the caller may reuse `bytes`, even if the
  /// network fails afterwards: the channel keeps a copy of small writes, large ones are in place by
  /// then. Only flush() says that all are in place. Calls from several threads run concurrently.
  /// After an error the channel is broken: every later call fails with the same error.
  virtual Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// Returns when every byte of every write that returned before this call is in place at the
  /// receiver and its `on_landed` or `on_arrived` has returned.
  virtual Status flush() = 0;

  /// Ends the transfer; call after the last flush(). From now on it is no error if the receiver
  /// closes its connections. Does not wait for the receiver.
  virtual void end() {}

  /// Limits the payload of all writes together to `bytes_per_second`; applies at once, also to
  /// running calls. 0: no limit. Flushes are not limited. Never blocks.
  virtual void limit_rate(std::uint64_t bytes_per_second) = 0;

  /// Makes all running and later calls fail with kCancelled. Never blocks.
  virtual void cancel() = 0;

  /// How many writes can usefully run at once. A large write waits until its bytes are in place, so
  /// with fewer threads the link is idle in between.
  virtual unsigned useful_writers() const = 0;

  virtual Statistics statistics() const = 0;
};

/// Called on the receiver's lane threads after `length_bytes` at `offset` of `region` are in place.
/// Several calls may run at once, never two for overlapping bytes of one write. An error breaks the
/// lane and reaches the sender as a failed write or flush.
using OnLanded =
    std::function<Status(RegionId region, std::uint64_t offset, std::uint64_t length_bytes)>;

/// The receiver's end of one transfer. Methods are thread-safe.
class Receiver {
 public:
  virtual ~Receiver() = default;

  /// Lets senders write into `bytes`, which must stay mapped until remove_region has returned or
  /// the receiver is destroyed. Fails with kInvalidArgument if `region` exists.
  virtual Status add_region(RegionId region, std::span<std::byte> bytes) = 0;

  /// Opens the window for regions without memory of their own; once, before the first of them.
  /// kInvalidArgument if it has fewer places than the receiver accepts lanes.
  virtual Status open_window(LandingWindow window) = 0;

  /// Lets senders write into a region of `size_bytes` without memory of its own: pieces of writes
  /// go to the window's `on_arrived`, not to `on_landed`. Fails as add_region.
  virtual Status add_windowed_region(RegionId region, std::uint64_t size_bytes) = 0;

  /// Revokes the region: later writes to it are refused. Returns when every running write into it
  /// has ended and its `on_arrived` has returned.
  virtual Status remove_region(RegionId region) = 0;

  /// Breaks all lanes. Never blocks. The destructor cancels, then waits for its threads.
  virtual void cancel() = 0;

  /// The first error of any lane; success if there is none.
  virtual Status health() const = 0;

  virtual Statistics statistics() const = 0;
};

}  // namespace gcr::transport

// Holding an application back for a share of the time, so that pre-copy can catch up with what it
// changes: as QEMU throttles the CPUs of a guest that dirties memory faster than the link drains
// it.
#pragma once

#include <chrono>
#include <memory>

#include "migrate-agent/door/door.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Closes and opens the gate in turns, on a thread of its own. It is open for kWindow each time and
/// held for as long as the share asks for, as QEMU does it: a program whose steps are large gets
/// fewer of them, where a fixed period would let one through in each. Any thread may call the
/// methods, one at a time.
class Throttle {
 public:
  static constexpr std::chrono::milliseconds kWindow{10};
  static constexpr double kMostShare = 0.99;

  struct Held {
    std::chrono::nanoseconds held{0};     ///< from asking for a closed gate to an open one
    std::chrono::nanoseconds elapsed{0};  ///< since the throttle was made

    /// 0 to 1; 0 if no time has passed.
    double share() const;
  };

  /// Holds nothing back yet. `door` belongs to the throttle, its gate is open, and it outlives it:
  /// its owner touches it again only after stop().
  explicit Throttle(Door& door);
  Throttle(Throttle&&) noexcept;
  Throttle& operator=(Throttle&&) noexcept;
  /// As stop(), if that was not called.
  ~Throttle();

  /// The share of time that the gate is held, from now on; taken into 0 to kMostShare.
  void set_share(double share);

  /// What was really held back so far. Closing waits for the GPU's work, which counts as held, and
  /// a gate that cannot be closed in its time was held for as long as was tried.
  Held held() const;

  /// Opens the gate and ends; the door is its owner's again. The error is the one that ended the
  /// throttling before: kNotFound if the process has. Should this process die instead, the gate
  /// opens by itself within two seconds. Calling it again does nothing.
  Status stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::agent

// When pre-copy ends: the decision after each digest of VRAM. Pure arithmetic, as in QEMU's live
// migration: the remaining bytes must fit the downtime limit at the measured rate. A program that
// dirties VRAM faster than the link sends it never gets there by itself; then it is throttled
// (auto-converge), the migration fails (strict), or it switches over regardless.
#pragma once

#include <cstdint>
#include <string>

#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::migration {

struct PrecopyLimits {
  double downtime_ms = worker::kDefaultDowntimeLimitMs;  ///< time to send the remaining bytes
                                                         ///< after the gate has closed
  unsigned max_rounds = 30;
  bool auto_converge = false;
  bool strict = false;
};

class Convergence {
 public:
  enum class Next {
    kInvalid = 0,
    kRound,   ///< send the dirty bytes, and digest again
    kFits,    ///< switch over: the remaining bytes fit the limit
    kStuck,   ///< switch over: rounds do not make them fewer
    kRounds,  ///< switch over: no more rounds allowed
  };

  explicit Convergence(PrecopyLimits limits) : limits_(limits) {}

  /// Decides what to do when the destination lacks `remaining_bytes`. kTimeout, with the reason, if
  /// `strict` forbids the switchover.
  Result<Next> decide(std::uint64_t remaining_bytes);

  /// Sets the downtime limit for later decisions.
  void set_downtime_limit(double limit_ms) { limits_.downtime_ms = limit_ms; }

  /// Records that a round has sent `bytes` in `seconds`. Short rounds count less.
  void sent(std::uint64_t bytes, double seconds);

  /// Whether the dirty bytes found after the gate closed may be sent now; else the gate opens again
  /// for another round. False only with `strict`.
  bool acceptable(std::uint64_t remaining_bytes) const {
    return !limits_.strict || fits(remaining_bytes);
  }

  /// Bytes per second; 0 before anything was sent.
  double rate() const { return rate_; }

  /// How long sending `bytes` takes at the measured rate; 0 if the rate is not known.
  double expected_ms(std::uint64_t bytes) const;

  /// The share of time, from 0 to 0.99, for which the gate has to be closed during the next round.
  double throttle() const { return throttle_; }

 private:
  bool fits(std::uint64_t remaining_bytes) const;
  Result<Next> end(Next next, std::uint64_t remaining_bytes) const;

  PrecopyLimits limits_;
  unsigned rounds_ = 0;
  unsigned stuck_ = 0;  // consecutive rounds that did not help
  std::uint64_t last_remaining_ = 0;
  double rate_ = 0;
  double throttle_ = 0;
};

/// The name in the report: "fits", "not-shrinking" or "max-rounds".
const char* to_string(Convergence::Next next);

}  // namespace gcr::migration

#include "migrate-agent/migration/engine/convergence.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/units.h"

// decide() compares the time to send the remaining bytes, at the measured rate, with the downtime
// limit, and ends pre-copy as soon as they fit. It also compares them with what remained before the
// last round. A round that leaves more than a fixed share of that has not helped; after kPatience
// such rounds in a row the program is dirtying VRAM too fast. With auto-converge each such decision
// raises the throttle by one step, up to kMostThrottle. Without it, and after the last step,
// pre-copy ends although the remaining bytes do not fit. The rate is an average of all rounds, in
// which a round shorter than kFullWeightSeconds has less weight.
namespace gcr::migration {
namespace {

/// Before any rate is known, this many bytes fit into the downtime.
constexpr std::uint64_t kNegligibleBytes = 2 * kChunkBytes;
/// A round has not helped if it leaves more than this share of what remained before it.
constexpr double kHelps = 0.9;
/// The share with auto-converge, as in QEMU: more than half of the sent bytes are dirty again.
constexpr double kConverges = 0.5;
constexpr unsigned kPatience = 2;
constexpr double kFirstThrottle = 0.2;  // QEMU's cpu-throttle-initial, -increment and max
constexpr double kThrottleStep = 0.1;
constexpr double kMostThrottle = 0.99;
/// A shorter round has the weight of its share of this.
constexpr double kFullWeightSeconds = 0.1;

}  // namespace

double Convergence::expected_ms(std::uint64_t bytes) const {
  return rate_ > 0 ? static_cast<double>(bytes) / rate_ * 1000 : 0;
}

bool Convergence::fits(std::uint64_t remaining_bytes) const {
  if (rate_ == 0) return remaining_bytes <= kNegligibleBytes;
  return expected_ms(remaining_bytes) <= limits_.downtime_ms;
}

void Convergence::sent(std::uint64_t bytes, double seconds) {
  if (bytes == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(bytes) / seconds;
  const double weight = rate_ == 0 ? 1 : std::min(1.0, seconds / kFullWeightSeconds);
  rate_ += weight * (rate - rate_);
}

Result<Convergence::Next> Convergence::end(Next next, std::uint64_t remaining_bytes) const {
  if (!limits_.strict) return next;
  return Error(
      Code::kTimeout,
      fmt::format("after {} rounds {} remain to be sent, which take {:.0f} ms at {}/s: more "
                  "than the downtime limit of {:.0f} ms",
                  rounds_, format_bytes(remaining_bytes), expected_ms(remaining_bytes),
                  format_bytes(static_cast<std::uint64_t>(rate_)), limits_.downtime_ms));
}

Result<Convergence::Next> Convergence::decide(std::uint64_t remaining_bytes) {
  if (fits(remaining_bytes)) return Next::kFits;
  const auto remaining = static_cast<double>(remaining_bytes);
  const auto before = static_cast<double>(last_remaining_);
  const double bar = limits_.auto_converge ? kConverges : kHelps;
  stuck_ = rounds_ > 0 && remaining > bar * before ? stuck_ + 1 : 0;
  last_remaining_ = remaining_bytes;
  if (rounds_ >= limits_.max_rounds) return end(Next::kRounds, remaining_bytes);
  if (stuck_ >= kPatience) {
    if (!limits_.auto_converge || throttle_ >= kMostThrottle) {
      return end(Next::kStuck, remaining_bytes);
    }
    throttle_ =
        throttle_ == 0 ? kFirstThrottle : std::min(throttle_ + kThrottleStep, kMostThrottle);
    stuck_ = 0;
  }
  ++rounds_;
  return Next::kRound;
}

const char* to_string(Convergence::Next next) {
  switch (next) {
    case Convergence::Next::kFits:
      return "fits";
    case Convergence::Next::kStuck:
      return "not-shrinking";
    case Convergence::Next::kRounds:
      return "max-rounds";
    default:
      return "";
  }
}

}  // namespace gcr::migration

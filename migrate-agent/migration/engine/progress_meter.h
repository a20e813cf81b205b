// The progress of copying VRAM, for operators: the copying thread reports each step, and any thread
// may read at any time. Pure bookkeeping.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "migrate-agent/migration/engine/downtime_history.h"
#include "proto/control.pb.h"

namespace gcr::migration {

/// The inputs of a downtime estimate other than the bytes to send.
struct DowntimeTerms {
  SteadyDowntime steady;
  double limit_ms = 0;
  unsigned max_rounds = 0;
};

class ProgressMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// The result of one digest of all VRAM; `dirty_bytes` are to be sent.
  struct DigestPass {
    Clock::time_point began;
    double digest_ms = 0;
    std::uint64_t vram_bytes = 0;
    std::uint64_t dirty_bytes = 0;
  };
  void end_digest(const DigestPass& pass);

  /// Begins to send what the last digest found. `payload_bytes`: the channel's count before it.
  void begin_round(unsigned number, std::uint64_t payload_bytes, Clock::time_point now);
  void end_round(std::uint64_t sent_bytes);

  /// The progress at `now`: bytes, rates, the expected downtime if the gate closed now, and the
  /// time until the end of the switchover. `payload_bytes`: the channel's count now.
  proto::Progress sample(std::uint64_t payload_bytes, Clock::time_point now,
                         const DowntimeTerms& terms);

 private:
  struct Sent {
    Clock::time_point at;
    std::uint64_t payload_bytes = 0;
  };
  void take(Sent sent);
  double rate() const;
  std::uint64_t sent_of_round(std::uint64_t payload_bytes) const;

  mutable std::mutex mutex_;
  DigestPass digest_;
  bool has_digest_ = false;
  double dirty_rate_ = 0;
  unsigned round_ = 0;
  std::uint64_t round_bytes_ = 0;
  enum class Stage { kDigested, kSending, kSent } stage_ = Stage::kDigested;
  std::uint64_t payload_before_ = 0;
  std::uint64_t sent_before_ = 0;  ///< bytes of all completed rounds
  std::deque<Sent> lately_;        ///< recent samples of this round
  double last_rate_ = 0;           ///< rate of the last completed round
};

struct CopyRates {
  double send_bytes_per_s = 0;
  double dirty_bytes_per_s = 0;
};

struct Forecast {
  double until_gate_ms = 0;  ///< duration of the rounds before the last one
  double last_round_bytes = 0;
};

/// Predicts the rounds until the remaining bytes fit the limit, if the program dirties VRAM and the
/// link sends it at these rates. Nothing if the remaining rounds are not enough.
std::optional<Forecast> forecast(double lacking_bytes, const CopyRates& rates, double limit_ms,
                                 unsigned rounds_left);

}  // namespace gcr::migration

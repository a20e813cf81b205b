#include "migrate-agent/migration/engine/progress_meter.h"

#include <algorithm>

namespace gcr::migration {
namespace {

/// The window for recent rates.
constexpr std::chrono::seconds kLately{2};
/// Rates over less than this are meaningless.
constexpr std::chrono::milliseconds kLeastSpan{50};
constexpr std::size_t kMostSamples = 64;

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void ProgressMeter::end_digest(const DigestPass& pass) {
  const std::lock_guard lock(mutex_);
  // The first digest finds all bytes that are not zero, which says nothing about the dirty rate.
  const double since = has_digest_ ? seconds(pass.began - digest_.began) : 0;
  dirty_rate_ = since > 0 ? static_cast<double>(pass.dirty_bytes) / since : 0;
  digest_ = pass;
  has_digest_ = true;
  stage_ = Stage::kDigested;
}

void ProgressMeter::begin_round(unsigned number, std::uint64_t payload_bytes,
                                Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  round_ = number;
  round_bytes_ = digest_.dirty_bytes;
  stage_ = Stage::kSending;
  payload_before_ = payload_bytes;
  lately_.assign(1, {now, payload_bytes});
}

void ProgressMeter::end_round(std::uint64_t sent_bytes) {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kSent;
  sent_before_ += sent_bytes;
  if (const double lately = rate(); lately > 0) last_rate_ = lately;
  lately_.clear();
}

void ProgressMeter::take(Sent sent) {
  if (lately_.empty()) return;
  lately_.push_back(sent);
  // Keeps one sample older than kLately, so that a rate covers at least that time.
  while (lately_.size() > 2 &&
         (sent.at - lately_[1].at > kLately || lately_.size() > kMostSamples)) {
    lately_.pop_front();
  }
}

double ProgressMeter::rate() const {
  if (lately_.size() < 2) return 0;
  const auto span = lately_.back().at - lately_.front().at;
  if (span < kLeastSpan) return 0;
  return static_cast<double>(lately_.back().payload_bytes - lately_.front().payload_bytes) /
         seconds(span);
}

std::uint64_t ProgressMeter::sent_of_round(std::uint64_t payload_bytes) const {
  if (stage_ != Stage::kSending || payload_bytes < payload_before_) return 0;
  // Images use the same channel, so the count may exceed the round's bytes.
  return std::min(payload_bytes - payload_before_, round_bytes_);
}

proto::Progress ProgressMeter::sample(std::uint64_t payload_bytes, Clock::time_point now,
                                      const DowntimeTerms& terms) {
  const std::lock_guard lock(mutex_);
  proto::Progress progress;
  if (!has_digest_) return progress;
  take({now, payload_bytes});
  const std::uint64_t sent = sent_of_round(payload_bytes);
  const std::uint64_t remaining = stage_ == Stage::kSent ? 0 : digest_.dirty_bytes - sent;
  progress.set_round(round_);
  progress.set_round_bytes(round_bytes_);
  progress.set_vram_bytes(digest_.vram_bytes);
  progress.set_sent_bytes(sent_before_ + sent);
  progress.set_remaining_bytes(remaining);
  const double lately = rate();
  const CopyRates rates{lately > 0 ? lately : last_rate_, dirty_rate_};
  progress.set_rate_bytes_per_s(rates.send_bytes_per_s);
  progress.set_dirty_rate_bytes_per_s(dirty_rate_);
  const auto vram = static_cast<double>(digest_.vram_bytes);
  const double lacking =
      std::min(vram, static_cast<double>(remaining) + dirty_rate_ * seconds(now - digest_.began));
  if (rates.send_bytes_per_s == 0 && lacking > 0) return progress;
  const auto downtime = [&](double bytes) {
    const double send_ms = bytes > 0 ? bytes / rates.send_bytes_per_s * 1000 : 0;
    return terms.steady.with_last_round_ms(digest_.digest_ms + send_ms);
  };
  progress.set_expected_downtime_ms(downtime(lacking));
  progress.set_expected_is_least(terms.steady.is_least);
  const unsigned rounds_left = terms.max_rounds > round_ ? terms.max_rounds - round_ : 0;
  if (const auto ahead =
          forecast(static_cast<double>(remaining), rates, terms.limit_ms, rounds_left)) {
    progress.set_time_left_ms(ahead->until_gate_ms + downtime(ahead->last_round_bytes));
  }
  return progress;
}

std::optional<Forecast> forecast(double lacking_bytes, const CopyRates& rates, double limit_ms,
                                 unsigned rounds_left) {
  Forecast ahead{0, lacking_bytes};
  if (lacking_bytes <= 0) return ahead;
  if (!(rates.send_bytes_per_s > 0)) return std::nullopt;
  for (unsigned round = 0;; ++round) {
    const double send_ms = ahead.last_round_bytes / rates.send_bytes_per_s * 1000;
    if (send_ms <= limit_ms) return ahead;
    if (round > rounds_left) return std::nullopt;
    ahead.until_gate_ms += send_ms;
    ahead.last_round_bytes = rates.dirty_bytes_per_s * send_ms / 1000;
  }
}

}  // namespace gcr::migration

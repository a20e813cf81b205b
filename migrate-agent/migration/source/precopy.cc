#include "migrate-agent/migration/source/precopy.h"

namespace gcr::migration {

using Clock = worker::Phases::Clock;

Status Precopy::find_dirty() {
  const worker::Phases::Timer timer(phases_, "vram", "digest");
  digest_began_ = Clock::now();
  dirty_.reset();
  GCR_ASSIGN(dirty_, vram_.find_dirty(target_));
  digest_ms_ = in_milliseconds(Clock::now() - digest_began_);
  meter_.end_digest({.began = digest_began_,
                     .digest_ms = digest_ms_,
                     .vram_bytes = vram_.total_bytes(),
                     .dirty_bytes = dirty_->bytes});
  return {};
}

Status Precopy::send(const gpu::Throttle* throttle) {
  const bool last = throttle == nullptr;
  const worker::Phases::Timer timer(phases_, "vram", last ? "last round" : "round");
  const auto start = Clock::now();
  const auto number = static_cast<std::uint32_t>(rounds_.size()) + 1;
  meter_.begin_round(number, target_.channel().statistics().payload_bytes, start);
  GCR_ASSIGN(const std::uint64_t sent_bytes, vram_.send(*dirty_, target_));
  meter_.end_round(sent_bytes);
  const double seconds = in_milliseconds(Clock::now() - start) / 1000;
  convergence_.sent(sent_bytes, seconds);
  proto::Round& round = rounds_.emplace_back();
  round.set_number(number);
  round.set_start_ms(phases_.since_origin_ms(digest_began_));
  round.set_digest_ms(digest_ms_);
  round.set_duration_ms(digest_ms_ + seconds * 1000);
  round.set_dirty_chunks(dirty_->chunks.size() + dirty_->cleared_chunks);
  round.set_zero_chunks(dirty_->zero_chunks);
  round.set_sent_bytes(sent_bytes);
  round.set_rate_bytes_per_s(sent_bytes == 0 ? 0 : static_cast<double>(sent_bytes) / seconds);
  round.set_last(last);
  if (!last) round.set_throttle(throttle->held().share());
  dirty_.reset();
  return {};
}

}  // namespace gcr::migration

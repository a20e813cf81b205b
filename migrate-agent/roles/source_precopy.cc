// The source while the process runs: rounds, the pause before the switchover, and the closing of
// the gate.
#include <fmt/format.h>

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/gpu_access/throttle.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/roles/source.h"
#include "src/base/units.h"

namespace gcr::agent {
namespace {

using std::chrono::seconds;

constexpr seconds kGateTimeout{10};
/// Pause between two rounds of a paused migration; doubled after each.
constexpr seconds kFirstPause{2};
constexpr seconds kLongestRest{60};
/// A paused migration waits at least this many times as long as its last round took.
constexpr int kRestPerRound = 9;

images::Compression to_compression(proto::Compression compression) {
  switch (compression) {
    case proto::COMPRESSION_NONE:
      return images::Compression::kNone;
    case proto::COMPRESSION_LZ4:
      return images::Compression::kLz4;
    case proto::COMPRESSION_ZSTD:
      return images::Compression::kZstd;
    default:
      return images::Compression::kAuto;
  }
}

}  // namespace

using asio::awaitable;

awaitable<Status> Source::precopy() {
  const Phases::Timer timer(phases_, "course", "pre-copy");
  // From here on a failure reports that the process runs on, not that nothing was touched.
  report_.set_source_touched(true);
  stage_ = Stage::kCopying;
  channel_->limit_rate(request_.max_bandwidth_bytes());
  for (;;) {
    GCR_CO_TRY(co_await look());
    precopy_->set_downtime_limit(limits_.downtime_ms);
    const auto next = precopy_->decide();
    GCR_CO_TRY(next);
    if (*next == Convergence::Next::kRound) {
      GCR_CO_TRY(co_await copy_round(precopy_->convergence().throttle()));
    } else if (request_.pause_before_switchover() && !may_switch_over_) {
      GCR_CO_TRY(co_await pause());
    } else {
      report_.set_switchover_reason(to_string(*next));
      break;
    }
  }
  stage_ = Stage::kSwitchingOver;
  channel_->limit_rate(0);
  expect_downtime_now();
  GCR_CO_TRY(open_image_sender());
  if (detaching_noted_) co_return Status();
  detaching_noted_ = true;
  const Status armed = co_await offload(context_.blocking, [&] { return arm_keeper(); });
  GCR_CO_TRY(armed);
  co_return co_await offload(context_.blocking, [&]() -> Status {
    journal::Record record;
    GCR_ASSIGN(*record.mutable_detaching()->add_homes(),
               process_->group().home_of(process_->process()));
    GCR_TRY(log_->advance(commit::SourceEvent::kDetaching, std::move(record)));
    return process_->enter_group();
  });
}

awaitable<Status> Source::look() {
  GCR_CO_TRY(co_await refresh_buffers());
  // CRIU is started before the digest: what takes time after it lets the process dirty more VRAM.
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(ready_images());
    return precopy_->look();
  });
}

awaitable<Status> Source::copy_round(double share_held) {
  tell("precopy", fmt::format("round {}: sending {}", precopy_->rounds().size() + 1,
                              format_bytes(precopy_->remaining_bytes())));
  const Status sent = co_await offload(context_.blocking, [&] { return send_round(share_held); });
  GCR_CO_TRY(sent);
  GCR_CO_TRY(fault::point("source.copied"));
  co_return check();
}

/// Waits for an operator's ContinueRequest. Meanwhile rounds keep the destination up to date, so
/// rarely that they hardly load GPU and link.
awaitable<Status> Source::pause() {
  paused_ = true;
  tell("paused", "waiting for `gcr-migrate continue` before the switchover");
  Phases::Clock::duration rest = kFirstPause;
  while (!may_switch_over_) {
    GCR_CO_TRY(check());
    pause_.expires_after(rest);
    std::error_code woken;
    co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (may_switch_over_ || interrupted_) continue;
    const auto began = Phases::Clock::now();
    GCR_CO_TRY(co_await look());
    if (precopy_->remaining_bytes() > 0) GCR_CO_TRY(co_await copy_round(0));
    rest =
        std::max<Phases::Clock::duration>(std::min<Phases::Clock::duration>(2 * rest, kLongestRest),
                                          kRestPerRound * (Phases::Clock::now() - began));
  }
  paused_ = false;
  tell("precopy", "going on to the switchover");
  co_return check();
}

/// Sets the expected downtime in the report.
void Source::expect_downtime_now() {
  const double send_ms = precopy_->expected_ms();
  const bool rate_is_known = precopy_->remaining_bytes() == 0 || send_ms > 0;
  report_.set_expected_send_ms(send_ms);
  report_.set_expected_downtime_ms(steady_.with_last_round_ms(precopy_->digest_ms() + send_ms));
  report_.set_expected_is_least(steady_.is_least || !rate_is_known);
}

/// While the round is sent, the process is throttled by this share.
Status Source::send_round(double share_held) {
  Throttle throttle(process_->access());
  throttle.set_share(share_held);
  const Status sent = precopy_->send(throttle);
  GCR_TRY(throttle.stop());
  GCR_TRY(sent);
  if (images_->in_rounds()) {
    const Phases::Timer dumping(phases_, "images", "pre-dump");
    GCR_TRY(open_image_sender());
    images_->round(*image_sender_);
  }
  return {};
}

/// Called when the link's rate is known: the choice of compression depends on it.
Status Source::open_image_sender() {
  if (image_sender_ != nullptr) return {};
  GCR_ASSIGN(image_sender_, images::ImageSender::create(
                                *channel_, {.region = image_region_.first,
                                            .region_bytes = image_region_.second,
                                            .compression = to_compression(request_.compression()),
                                            .link_bytes_per_s = precopy_->convergence().rate(),
                                            .secret = key_bytes_}));
  return {};
}

Status Source::ready_images() {
  if (images_->prepared()) return {};
  const Phases::Timer timer(phases_, "images", "start CRIU");
  return images_->prepare();
}

/// The gate is open again, and the process still runs here.
void Source::count_undone_closing() {
  if (!gate_closed_at_) return;
  const auto now = Phases::Clock::now();
  phases_.add("course", "undone closing", *gate_closed_at_, now);
  undone_closings_ += now - *gate_closed_at_;
  gate_closed_at_.reset();
}

/// True if the switchover goes on; false if the gate is open again, for another round.
awaitable<Result<bool>> Source::close_gate() {
  GCR_CO_TRY(fault::point("source.closing"));
  tell("switchover", "closing the gate");
  gate_closed_at_ = Phases::Clock::now();
  report_.set_gate_closed_ms(phases_.since_origin_ms(*gate_closed_at_));
  const Status gated = co_await offload(context_.blocking, [&] {
    return phases_.time("process", "close gate",
                        [&] { return process_->close_gate(kGateTimeout); });
  });
  GCR_CO_TRY(gated);
  GCR_CO_TRY(fault::point("source.gated"));
  GCR_CO_TRY(check());
  GCR_CO_TRY(co_await refresh_buffers());
  if (!limits_.strict) co_return true;
  const Result<bool> acceptable = co_await offload(context_.blocking, [&]() -> Result<bool> {
    GCR_TRY(precopy_->look());
    if (precopy_->acceptable()) return true;
    GCR_TRY(process_->open_gate());
    return false;
  });
  if (acceptable && !*acceptable) count_undone_closing();
  co_return acceptable;
}

}  // namespace gcr::agent

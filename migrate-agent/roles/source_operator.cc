// The source and its operators: what they are told, and what they may order during a migration.
#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <asio/steady_timer.hpp>
#include <cmath>

#include "migrate-agent/roles/source.h"
#include "migrate-agent/worker/adjustment.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::agent {
namespace {

constexpr std::chrono::hours kOperatorPatience{24 * 365};
constexpr std::chrono::milliseconds kProgressInterval{200};

}  // namespace

using asio::awaitable;

void Source::tell(const char* phase, std::string text) {
  phase_ = phase;
  context_.daemon.report_phase(phase);
  operator_.tell(phase, std::move(text));
}

awaitable<void> Source::run() {
  using asio::experimental::awaitable_operators::operator||;
  log_migration(migration_);
  spdlog::info("moves process {} to {}", request_.pid(),
               control::printable(request_.destination()));
  context_.line.attach(this);
  std::exception_ptr broken;
  co_await (migrate_guarded(broken) || heed_operator() || show_progress() || operator_.write());
  context_.line.attach(nullptr);
  if (broken) std::rethrow_exception(broken);
}

/// An exception that leaves it ends the others too.
awaitable<void> Source::migrate_guarded(std::exception_ptr& broken) {
  try {
    co_await migrate_and_report();
  } catch (...) {
    broken = std::current_exception();
  }
}

/// Orders during the migration. An operator who is gone gives none.
awaitable<void> Source::heed_operator() {
  for (;;) {
    const auto message = co_await context_.channel.receive(kOperatorPatience);
    if (!message) break;
    Status heeded;
    if (message->has_cancel_request()) context_.cancellation.request("the operator cancelled it");
    if (message->has_continue_request()) heeded = go_on();
    if (message->has_adjust_request()) {
      const auto wanted = adjustment_of(message->adjust_request());
      heeded = wanted ? adjust(*wanted) : Status(wanted.error());
    }
    if (!heeded) operator_.tell(phase_, heeded.error().message());
  }
  asio::steady_timer forever(context_.io, asio::steady_timer::time_point::max());
  co_await forever.async_wait(asio::use_awaitable);
}

awaitable<void> Source::show_progress() {
  asio::steady_timer next(context_.io);
  for (;;) {
    next.expires_after(kProgressInterval);
    co_await next.async_wait(asio::use_awaitable);
    operator_.show(progress());
  }
}

proto::Progress Source::progress() {
  const auto now = Phases::Clock::now();
  // Until pre-copy begins, the code that opens the channel uses it alone.
  const std::uint64_t payload_bytes = precopy_ ? channel_->statistics().payload_bytes : 0;
  proto::Progress progress = meter_.sample(
      payload_bytes, now,
      {.steady = steady_, .limit_ms = limits_.downtime_ms, .max_rounds = limits_.max_rounds});
  progress.set_phase(phase_);
  progress.set_elapsed_ms(phases_.since_origin_ms(now));
  progress.set_paused(paused_);
  progress.set_max_bandwidth_bytes(request_.max_bandwidth_bytes());
  progress.set_downtime_limit_ms(limits_.downtime_ms);
  if (stage_ == Stage::kCopying && !paused_) {
    progress.set_throttle(precopy_->convergence().throttle());
  }
  if (paused_) progress.set_time_left_ms(0);
  if (stage_ == Stage::kSwitchingOver) {
    const double expected_ms = report_.expected_downtime_ms();
    const double closed_ms = gate_closed_at_ ? Phases::milliseconds(now - *gate_closed_at_) : 0;
    progress.set_expected_downtime_ms(expected_ms);
    progress.set_expected_is_least(report_.expected_is_least());
    progress.set_time_left_ms(std::max(0.0, expected_ms - closed_ms));
  }
  return progress;
}

Status Source::may_be_changed() const {
  if (interrupted_) {
    return Error(Code::kRefused, "the migration is being cancelled: " + interrupted_->message());
  }
  if (stage_ != Stage::kSwitchingOver) return {};
  return Error(Code::kRefused, report_.committed() ? "the migration is committed already"
                                                   : "the migration is in its switchover already");
}

Status Source::go_on() {
  GCR_TRY(may_be_changed());
  if (!request_.pause_before_switchover()) {
    return Error(Code::kRefused, "the migration does not pause before its switchover");
  }
  if (may_switch_over_) {
    return Error(Code::kRefused, "the migration switches over already");
  }
  may_switch_over_ = true;
  pause_.cancel();
  return {};
}

Status Source::adjust(const registry::Adjust& wanted) {
  GCR_TRY(may_be_changed());
  std::string changed;
  if (wanted.has_max_bandwidth_bytes()) {
    const std::uint64_t rate = wanted.max_bandwidth_bytes();
    request_.set_max_bandwidth_bytes(rate);
    if (stage_ == Stage::kCopying) channel_->limit_rate(rate);
    changed = rate == 0 ? "no limit of bandwidth"
                        : fmt::format("at most {}/s are sent", format_bytes(rate));
  }
  if (wanted.has_downtime_limit_ms()) {
    limits_.downtime_ms = wanted.downtime_limit_ms();
    changed += fmt::format("{}the downtime limit is {:.0f} ms", changed.empty() ? "" : ", ",
                           limits_.downtime_ms);
  }
  operator_.tell(phase_, "from now on: " + changed);
  return {};
}

}  // namespace gcr::agent

#include "migrate-agent/migration/engine/console.h"

#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <stdexcept>

#include "src/base/units.h"

namespace gcr::migration {
namespace {

constexpr std::chrono::hours kOperatorPatience{24 * 365};
constexpr std::chrono::milliseconds kProgressInterval{200};

PrecopyLimits limits_of(const proto::MigrateRequest& request) {
  PrecopyLimits limits{.auto_converge = request.auto_converge(), .strict = request.strict()};
  if (request.downtime_limit_ms() > 0) limits.downtime_ms = request.downtime_limit_ms();
  if (request.max_rounds() > 0) limits.max_rounds = request.max_rounds();
  return limits;
}

}  // namespace

using asio::awaitable;

Console::Console(worker::WorkerContext& worker, const proto::MigrateRequest& request)
    : worker_(worker),
      link_(worker.io, worker.channel),
      pauses_(request.pause_before_switchover()),
      limits_(limits_of(request)),
      max_bandwidth_bytes_(request.max_bandwidth_bytes()),
      registration_(worker.cancellation.on_request([this] {
        const std::lock_guard lock(mutex_);
        cancelled_ = worker_.cancellation.check().error();
        changed_.notify_all();
      })) {}

/// Receives the operator's orders and sends progress, until it is cancelled.
awaitable<void> Console::serve_operator() {
  using asio::experimental::awaitable_operators::operator&&;
  co_await (follow_orders() && show_progress());
}

/// Receives orders until the operator's connection is lost.
awaitable<void> Console::follow_orders() {
  for (;;) {
    const auto message = co_await worker_.channel.receive(kOperatorPatience);
    if (!message) co_return;
    Status followed;
    if (message->has_cancel_request()) worker_.cancellation.request("the operator cancelled it");
    if (message->has_continue_request()) followed = go_on();
    if (message->has_adjust_request()) {
      followed = worker::check_adjustment(message->adjust_request());
      if (followed) followed = adjust(message->adjust_request());
    }
    if (followed) continue;
    const std::lock_guard lock(mutex_);
    link_.tell(phase_, followed.error().message());
  }
}

awaitable<void> Console::show_progress() {
  asio::steady_timer next(worker_.io);
  for (;;) {
    next.expires_after(kProgressInterval);
    co_await next.async_wait(asio::use_awaitable);
    link_.show(progress());
  }
}

proto::Progress Console::progress() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr) payload_bytes_ = channel_->statistics().payload_bytes;
  proto::Progress progress = meter_.sample(
      payload_bytes_, now,
      {.steady = steady_, .limit_ms = limits_.downtime_ms, .max_rounds = limits_.max_rounds});
  progress.set_phase(phase_);
  progress.set_elapsed_ms(in_milliseconds(now - started_));
  progress.set_paused(paused_);
  progress.set_max_bandwidth_bytes(max_bandwidth_bytes_);
  progress.set_downtime_limit_ms(limits_.downtime_ms);
  if (stage_ == Stage::kCopying && !paused_) progress.set_throttle(throttle_);
  if (paused_) progress.set_time_left_ms(0);
  if (stage_ >= Stage::kSwitchingOver) {
    const double closed_ms = in_milliseconds(downtime_.current());
    progress.set_expected_downtime_ms(expected_downtime_ms_);
    progress.set_expected_is_least(expected_is_least_);
    progress.set_time_left_ms(std::max(0.0, expected_downtime_ms_ - closed_ms));
  }
  return progress;
}

/// Whether an operator may change the migration now. The caller holds the mutex.
Status Console::may_be_changed() const {
  if (cancelled_) {
    return Error(Code::kRefused, "the migration is being cancelled: " + cancelled_->message());
  }
  if (stage_ < Stage::kSwitchingOver) return {};
  return Error(Code::kRefused,
               stage_ == Stage::kCommitted
                   ? "the migration is committed already"
                   : "the migration is in its switchover, in which nothing can be changed");
}

Status Console::go_on() {
  const std::lock_guard lock(mutex_);
  GCR_TRY(may_be_changed());
  if (!pauses_) {
    return Error(Code::kRefused, "the migration does not pause before its switchover");
  }
  if (may_switch_over_) {
    return Error(Code::kRefused, "the migration was already told to switch over");
  }
  may_switch_over_ = true;
  changed_.notify_all();
  return {};
}

Status Console::adjust(const proto::AdjustRequest& wanted) {
  const std::lock_guard lock(mutex_);
  GCR_TRY(may_be_changed());
  std::string changed;
  if (wanted.has_max_bandwidth_bytes()) {
    const std::uint64_t rate = wanted.max_bandwidth_bytes();
    max_bandwidth_bytes_ = rate;
    if (stage_ == Stage::kCopying && channel_ != nullptr) channel_->limit_rate(rate);
    changed = rate == 0 ? "bandwidth is not limited"
                        : fmt::format("bandwidth is limited to {}/s", format_bytes(rate));
  }
  if (wanted.has_downtime_limit_ms()) {
    limits_.downtime_ms = wanted.downtime_limit_ms();
    changed += fmt::format("{}the downtime limit is {:.0f} ms", changed.empty() ? "" : ", ",
                           limits_.downtime_ms);
  }
  link_.tell(phase_, "from now on: " + changed);
  return {};
}

void Console::tell(const char* phase, std::string text) {
  bool paused = false;
  {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
    paused = paused_;
  }
  asio::post(worker_.io, [this, phase, paused, text = std::move(text)]() mutable {
    worker_.daemon.report_phase(paused ? worker::kPausedPhase : phase);  // rounds go on in a pause
    link_.tell(phase, std::move(text));
  });
}

void Console::tell(proto::Envelope message) {
  asio::post(worker_.io,
             [this, message = std::move(message)]() mutable { link_.tell(std::move(message)); });
}

PrecopyLimits Console::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

void Console::set_steady_downtime(const SteadyDowntime& steady) {
  const std::lock_guard lock(mutex_);
  steady_ = steady;
}

void Console::begin_copying(transport::Channel& channel) {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kCopying;
  channel_ = &channel;
  channel.limit_rate(max_bandwidth_bytes_);
}

void Console::end_copying() {
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr) payload_bytes_ = channel_->statistics().payload_bytes;
  channel_ = nullptr;
}

void Console::set_throttle(double share) {
  const std::lock_guard lock(mutex_);
  throttle_ = share;
}

void Console::begin_switchover(double expected_downtime_ms, bool expected_is_least) {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kSwitchingOver;
  channel_->limit_rate(0);
  expected_downtime_ms_ = expected_downtime_ms;
  expected_is_least_ = expected_is_least;
}

void Console::set_committed(bool committed) {
  const std::lock_guard lock(mutex_);
  stage_ = committed ? Stage::kCommitted : Stage::kSwitchingOver;
}

void Console::set_paused(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
}

bool Console::may_switch_over() const {
  const std::lock_guard lock(mutex_);
  return may_switch_over_;
}

bool Console::sleep_unless_ordered(Clock::duration patience) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, patience, [this] { return may_switch_over_ || cancelled_; });
}

awaitable<void> Console::run(std::function<void()> course) {
  using asio::experimental::awaitable_operators::operator&&;
  using asio::experimental::awaitable_operators::operator||;
  Status ran;
  const auto run = [&]() -> awaitable<void> {
    ran = co_await worker::offload(worker_.blocking, [&]() -> Status {
      course();
      return {};
    });
    link_.finish();
  };
  worker_.line.attach(this);
  co_await ((run() && link_.write()) || serve_operator());
  worker_.line.attach(nullptr);
  if (!ran) throw std::runtime_error(ran.error().message());
}

}  // namespace gcr::migration

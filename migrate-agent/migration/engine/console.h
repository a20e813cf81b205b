// What a migration's course shares with its operators: messages to them, the progress that they
// see, and their orders. The course calls from its own thread, operators' orders arrive on the
// thread of the io_context; one mutex protects the shared state.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "migrate-agent/migration/engine/convergence.h"
#include "migrate-agent/migration/engine/downtime_clock.h"
#include "migrate-agent/migration/engine/downtime_history.h"
#include "migrate-agent/migration/engine/operator_link.h"
#include "migrate-agent/migration/engine/progress_meter.h"
#include "migrate-agent/worker/runtime/context.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "transport/channel.h"

namespace gcr::migration {

class Console : public worker::SourceControl {
 public:
  using Clock = worker::Phases::Clock;

  Console(worker::WorkerContext& worker, const proto::MigrateRequest& request);

  // Call these on the thread of the io_context.

  /// Runs `course` on a thread of the worker's pool, and serves the operator concurrently. Throws
  /// std::runtime_error if an exception escapes the course.
  asio::awaitable<void> run(std::function<void()> course);

  proto::Progress progress() override;
  Status go_on() override;
  Status adjust(const proto::AdjustRequest& wanted) override;

  // Call these from the course, which ends before this object does.

  void tell(const char* phase, std::string text);
  void tell(proto::Envelope message);

  /// The limits of pre-copy, with the current downtime limit.
  PrecopyLimits limits() const;
  ProgressMeter& meter() { return meter_; }

  void set_steady_downtime(const SteadyDowntime& steady);

  /// Operators limit the rate of `channel` from now on. It exists until end_copying().
  void begin_copying(transport::Channel& channel);
  /// Progress shows what was sent until now. Without effect if nothing was.
  void end_copying();
  void set_throttle(double share);

  /// From now on operators can change nothing.
  void begin_switchover(double expected_downtime_ms, bool expected_is_least);
  /// The commit was ordered; only a lost copy withdraws it.
  void set_committed(bool committed);

  /// The only record of when the job was stopped.
  DowntimeClock& downtime() { return downtime_; }

  void set_paused(bool paused);
  /// Whether an operator has ordered the switchover.
  bool may_switch_over() const;
  /// Waits for an operator's switchover order, a cancellation or the end of `patience`; an order or
  /// cancellation before the call counts too. True: `patience` has ended.
  bool sleep_unless_ordered(Clock::duration patience);

  Clock::time_point started() const { return started_; }

 private:
  /// How far the course has come, which decides what an operator may still change.
  enum class Stage { kBeginning, kCopying, kSwitchingOver, kCommitted };

  asio::awaitable<void> serve_operator();
  asio::awaitable<void> follow_orders();
  asio::awaitable<void> show_progress();
  Status may_be_changed() const;

  worker::WorkerContext& worker_;
  OperatorLink link_;  ///< used on the io_context's thread
  const Clock::time_point started_ = Clock::now();
  const bool pauses_;
  ProgressMeter meter_;

  mutable std::mutex mutex_;  ///< protects all members below
  std::condition_variable changed_;
  std::optional<Error> cancelled_;  ///< the reason, if cancelled
  bool may_switch_over_ = false;    ///< an operator's ContinueRequest
  bool paused_ = false;
  Stage stage_ = Stage::kBeginning;
  std::string phase_;  ///< the phase last sent to the operator
  PrecopyLimits limits_;
  std::uint64_t max_bandwidth_bytes_;
  transport::Channel* channel_ = nullptr;
  std::uint64_t payload_bytes_ = 0;  ///< of the channel, when it was last asked
  double throttle_ = 0;
  SteadyDowntime steady_;
  double expected_downtime_ms_ = 0;
  bool expected_is_least_ = false;

  DowntimeClock downtime_;
  worker::Cancellation::Registration registration_;
};

}  // namespace gcr::migration

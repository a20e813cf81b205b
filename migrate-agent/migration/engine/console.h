// All that a migration's course shares with its operators: what they are told, what they see of the
// progress, and what they may order. The course calls from its thread, operators come in on that of
// the io_context; one mutex is between them.
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

  // For the thread of the io_context.

  /// Sends what is told, until all before finish() has been sent.
  asio::awaitable<void> write() { return link_.write(); }
  void finish() { link_.finish(); }

  /// Takes orders and shows progress, until it is cancelled.
  asio::awaitable<void> attend();

  proto::Progress progress() override;
  Status go_on() override;
  Status adjust(const proto::AdjustRequest& wanted) override;

  // For the course, which ends before this object does.

  void tell(const char* phase, std::string text);
  void tell(proto::Envelope message);

  /// With the downtime limit that holds now.
  PrecopyLimits limits() const;
  ProgressMeter& meter() { return meter_; }

  void set_steady_downtime(const SteadyDowntime& steady);

  /// `channel` outlives the migration; operators limit its rate from now on.
  void begin_copying(transport::Channel& channel);
  void set_throttle(double share);

  /// Operators change nothing any more.
  void begin_switchover(double expected_downtime_ms, bool expected_is_least);
  /// The commit was ordered; it is withdrawn only by a lost copy.
  void set_committed(bool committed);

  /// The one place that knows when the job was stopped.
  DowntimeClock& downtime() { return downtime_; }

  void set_paused(bool paused);
  /// Whether an operator has ordered the switchover.
  bool may_switch_over() const;
  /// Waits for that order, a cancellation or the end of `patience`; true if it was the latter. What
  /// came before the call counts too.
  bool rest(Clock::duration patience);

  Clock::time_point started() const { return started_; }

 private:
  /// What an operator may still change.
  enum class Stage { kBeginning, kCopying, kSwitchingOver, kCommitted };

  asio::awaitable<void> follow_orders();
  asio::awaitable<void> show_progress();
  Status may_be_changed() const;

  worker::WorkerContext& worker_;
  OperatorLink link_;  ///< of the io_context's thread
  const Clock::time_point started_ = Clock::now();
  const bool pauses_;
  ProgressMeter meter_;

  mutable std::mutex mutex_;  ///< for all that follows
  std::condition_variable changed_;
  std::optional<Error> cancelled_;  ///< why
  bool may_switch_over_ = false;    ///< an operator's ContinueRequest
  bool paused_ = false;
  Stage stage_ = Stage::kBeginning;
  std::string phase_;  ///< as last told to the operator
  PrecopyLimits limits_;
  std::uint64_t max_bandwidth_bytes_;
  transport::Channel* channel_ = nullptr;
  double throttle_ = 0;
  SteadyDowntime steady_;
  double expected_downtime_ms_ = 0;
  bool expected_is_least_ = false;

  DowntimeClock downtime_;
  worker::Cancellation::Registration registration_;
};

/// Runs `course` on a thread of the worker's pool, and the console beside it. Throws
/// std::runtime_error if an exception left the course.
asio::awaitable<void> run_with_console(worker::WorkerContext& context, Console& console,
                                       std::function<void()> course);

}  // namespace gcr::migration

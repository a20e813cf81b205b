// `gcr-migrate checkpoint --every`: checkpoints at intervals.
#include <fmt/format.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <csignal>

#include "src/cli/migration_view.h"
#include "src/cli/progress_text.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostFailures = 3;

class Series {
 public:
  explicit Series(Order order)
      : order_(std::move(order)), timer_(io_), signals_(io_, SIGINT, SIGTERM) {}

  ExitCode run(std::chrono::milliseconds every) {
    for (;;) {
      const auto began = Clock::now();
      const ExitCode last = take();
      if (is_over(last) || !wait_until(began + every)) return last;
    }
  }

 private:
  ExitCode take() {
    const auto view = make_view(order_);
    Outcome outcome = perform(order_, *view);
    proto::MigrateRequest& request = *order_.request.mutable_migrate_request();
    if (request.start_time() == 0) request.set_start_time(outcome.report.start_time());
    const bool gone = outcome.report.code() == to_string(Code::kNotFound);
    if (gone && succeeded_) outcome.exit_code = ExitCode::kEnded;
    return show_outcome(*view, Task::kCheckpoint, outcome);
  }

  bool is_over(ExitCode last) {
    if (last == ExitCode::kEnded) return true;
    failures_ = last == ExitCode::kMigrated ? 0 : failures_ + 1;
    succeeded_ = succeeded_ || failures_ == 0;
    return !succeeded_ || failures_ == kMostFailures;
  }

  /// Waits until `due`; false if a signal arrived before or during the wait.
  bool wait_until(Clock::time_point due) {
    const std::chrono::duration<double, std::milli> left = due - Clock::now();
    if (left.count() > 0 && !order_.json && !order_.quiet) {
      print_now(fmt::format("the next checkpoint is due in {}\n", duration_text(left.count())));
    }
    bool signalled = false;
    timer_.expires_at(due);
    timer_.async_wait([this](std::error_code error) {
      if (!error) signals_.cancel();
    });
    signals_.async_wait([&](std::error_code error, int) {
      if (error) return;
      signalled = true;
      timer_.cancel();
    });
    io_.restart();
    io_.run();
    return !signalled;
  }

  Order order_;  ///< from the first checkpoint on only for that process, not for a later one with
                 ///< its PID
  asio::io_context io_{1};
  asio::steady_timer timer_;
  asio::signal_set signals_;  ///< a running checkpoint's conversation has its own handlers too
  bool succeeded_ = false;
  int failures_ = 0;  ///< in a row
};

}  // namespace

ExitCode take_checkpoints(const Order& order, std::chrono::milliseconds every) {
  return Series(order).run(every);
}

}  // namespace gcr::cli

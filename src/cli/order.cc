#include "src/cli/order.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "src/cli/answer_text.h"
#include "src/cli/migration_view.h"
#include "src/cli/progress_text.h"
#include "src/cli/terminal_block.h"
#include "src/cli/trace.h"

namespace gcr::cli {
namespace {

using control::printable;

/// Returns the outcome for a file on the command line that cannot be used.
Outcome unusable(const Error& error) {
  Outcome outcome = outcome_of(error, false);
  outcome.exit_code = ExitCode::kUsage;
  return outcome;
}

/// Runs the operator's own command. Its output goes to standard error, and its failure does not
/// affect the migration.
void run_on_commit(const Order& order, const proto::MigrateReport& report) {
  const Uuid id = to_uuid(report.migration_id());
  const std::pair<const char*, std::string> environment[] = {
      {"GCR_SRC", order.agent.endpoint.host},
      {"GCR_DST", order.destination.host},
      {"GCR_PID", report.destination_pid() > 0 ? std::to_string(report.destination_pid()) : ""},
      {"GCR_MIGRATION", id.to_string()}};
  for (const auto& [name, value] : environment) ::setenv(name, value.c_str(), 1);
  std::fflush(nullptr);
  const int status = std::system(("exec >&2\n" + order.on_commit).c_str());
  if (status == 0) return;
  const std::string how = status > 0 && WIFSIGNALED(status)
                              ? fmt::format("was ended by signal {}", WTERMSIG(status))
                              : fmt::format("ended with status {}", WEXITSTATUS(status));
  complain(fmt::format("the --on-commit command {}; the process was migrated", how));
}

using Clock = std::chrono::steady_clock;

constexpr int kMostFailures = 3;

/// Checkpoints of one process at intervals.
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

Task task_of(const Order& order) {
  if (order.request.has_load_request()) return Task::kRestore;
  if (order.request.has_suspend_request()) return Task::kSuspend;
  if (order.request.has_resume_request()) return Task::kResume;
  return order.request.migrate_request().has_checkpoint() ? Task::kCheckpoint : Task::kMigration;
}

Outcome perform(const Order& order, MigrationView& view) {
  const auto agent = with_certificates(order.agent);
  if (!agent) return unusable(agent.error());
  std::ofstream trace;
  if (!order.trace_path.empty()) {  // opened before anything is changed
    trace.open(order.trace_path, std::ios::binary | std::ios::trunc);
    const Error error = Error::from_errno(errno, "cannot open " + order.trace_path);
    if (!trace) return unusable(error);
  }
  Outcome outcome = converse(order, *agent, view);
  if (trace.is_open()) {
    trace << to_trace(outcome.report) << '\n';
    trace.close();
    const Error error = Error::from_errno(errno, "cannot write the trace to " + order.trace_path);
    if (!trace) complain(printable(error.message()));
  }
  return outcome;
}

ExitCode carry_out(const Order& order) {
  const auto view = make_view(order);
  const Outcome outcome = perform(order, *view);
  if (!order.on_commit.empty() && outcome.exit_code == ExitCode::kMigrated) {
    run_on_commit(order, outcome.report);
  }
  return show_outcome(*view, task_of(order), outcome);
}

ExitCode take_checkpoints(const Order& order, std::chrono::milliseconds every) {
  return Series(order).run(every);
}

ExitCode preflight(const Order& order) {
  auto agent = with_certificates(order.agent);
  if (!agent) return fail(ExitCode::kUsage, agent.error().message());
  agent->silence = std::chrono::minutes(2);  // two hosts are examined, one after the other
  proto::Envelope question;
  *question.mutable_check_request()->mutable_migrate() = order.request.migrate_request();
  const auto answer = ask_and_wait(*agent, question);
  if (!answer) return fail(untouched_exit_code(answer.error().code()), answer.error().message());
  const proto::CheckReply& reply = answer->check_reply();
  fmt::print("{}", order.json ? preflight_json(reply) : preflight_text(reply));
  return is_ready(reply) ? ExitCode::kMigrated : ExitCode::kRefused;
}

}  // namespace gcr::cli

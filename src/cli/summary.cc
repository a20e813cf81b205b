#include <fmt/format.h>

#include <iterator>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/cli/order.h"
#include "src/cli/trace.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;

std::string rate(double bytes_per_s) {
  if (!(bytes_per_s > 0)) return "-";
  return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9);
}

/// Appends the phases of both sides in one table, in order of time.
void append_phases(std::string& text, const proto::MigrateReport& report) {
  if (report.phases().empty()) return;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "  {:>12} {:>12}  {:<11}  {:<12}  {}\n", "start ms", "duration ms", "host",
                 "track", "phase");
  for (const proto::PhaseTime* phase : in_order_of_time(report.phases())) {
    fmt::format_to(out, "  {:>12.1f} {:>12.1f}  {:<11}  {:<12}  {}\n", phase->start_ms(),
                   phase->duration_ms(), printable(phase->host()), printable(track_of(*phase)),
                   printable(phase->name()));
  }
}

void append_rounds(std::string& text, const proto::MigrateReport& report) {
  if (report.rounds().empty()) return;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "  {:>5} {:>12} {:>12} {:>12} {:>8} {:>8} {:>10} {:>11} {:>9}\n", "round",
                 "start ms", "digests ms", "duration ms", "changed", "zeros", "sent", "rate",
                 "throttled");
  for (const proto::Round& round : report.rounds()) {
    fmt::format_to(out,
                   "  {:>5} {:>12.1f} {:>12.1f} {:>12.1f} {:>8} {:>8} {:>10} {:>11} {:>7.0f} %{}\n",
                   round.number(), round.start_ms(), round.digest_ms(), round.duration_ms(),
                   round.dirty_chunks(), round.zero_chunks(), format_bytes(round.sent_bytes()),
                   rate(round.rate_bytes_per_s()), round.throttle() * 100,
                   round.last() ? "  gate closed" : "");
  }
}

/// Returns the text for MigrateReport.switchover_reason.
std::string why(const std::string& reason) {
  if (reason == "fits") return "the rest fits the limit";
  if (reason == "not-shrinking") return "the rest no longer shrank";
  if (reason == "max-rounds") return "the maximum number of rounds was reached";
  return printable(reason);
}

std::string undone_closings_of(const proto::MigrateReport& report) {
  const UndoneClosings undone = undone_closings(report);
  if (undone.count == 0) return "";
  return fmt::format(" ({:.1f} ms in closings of the gate that were undone: {})",
                     undone.duration_ms, undone.count);
}

void append_switchover(std::string& text, Task task, const proto::MigrateReport& report) {
  if (report.switchover_reason().empty()) return;
  fmt::format_to(std::back_inserter(text),
                 "  switchover: {}; limit {:.1f} ms, the last round expected to take {:.1f} ms; "
                 "{} {:.1f} ms{}, expected {} {:.1f} ms\n",
                 why(report.switchover_reason()), report.downtime_limit_ms(),
                 report.expected_send_ms(), task == Task::kCheckpoint ? "standstill" : "downtime",
                 report.downtime_ms(), undone_closings_of(report),
                 report.expected_is_least() ? "at least" : "about", report.expected_downtime_ms());
}

void append_images(std::string& text, const proto::MigrateReport& report) {
  if (report.image_mode().empty()) return;
  const std::string& reason = report.image_mode_reason();
  fmt::format_to(std::back_inserter(text),
                 "  images: {} as CRIU wrote them, {} sent, compression {}; {}{}\n",
                 format_bytes(report.image_bytes()), format_bytes(report.sent_image_bytes()),
                 report.compression().empty() ? "none" : printable(report.compression()),
                 report.image_mode() == "rounds" ? "in rounds" : "in one stream",
                 reason.empty() ? "" : fmt::format(" ({})", printable(reason)));
}

void append_prefill(std::string& text, Task task, const proto::MigrateReport& report) {
  if ((task != Task::kMigration && task != Task::kRestore) || !report.verified()) return;
  fmt::format_to(std::back_inserter(text), "  GPU memory{}: {}\n",
                 task == Task::kMigration ? " at the destination" : "",
                 report.prefilled() ? "filled before the process was restored"
                                    : "loaded after the process was restored");
}

void append_clock(std::string& text, const proto::MigrateReport& report) {
  if (!(report.clock_error_ms() > 0)) return;
  fmt::format_to(std::back_inserter(text),
                 "  clocks: the destination's is {:+.3f} ms from the source's, within {:.3f} ms\n",
                 report.clock_offset_ms(), report.clock_error_ms());
}

/// Returns the number of processes; empty for a single process.
std::string job_of(const proto::MigrateReport& report) {
  if (report.processes() < 2) return "";
  if (report.gpu_processes() == 0) return fmt::format("{} processes; ", report.processes());
  return fmt::format("{} processes, {} of them with GPUs; ", report.processes(),
                     report.gpu_processes());
}

std::string contents_of(const proto::MigrateReport& report) {
  return fmt::format("{}{} of VRAM in {} buffers", job_of(report),
                     format_bytes(report.vram_bytes()), report.buffers());
}

std::string name_of(const proto::MigrateReport& report) {
  return report.checkpoint().empty() ? "unknown" : printable(report.checkpoint());
}

std::string pid_of(const proto::MigrateReport& report) {
  const int pid = report.destination_pid();
  return pid > 0 ? std::to_string(pid) : "unknown";
}

std::string head_of_migration(const Order& order, const Outcome& outcome) {
  const proto::MigrateRequest& request = order.request.migrate_request();
  const proto::MigrateReport& report = outcome.report;
  std::string text =
      fmt::format("process {} of {} {} at {}", request.pid(), order.agent.endpoint.to_string(),
                  report.suspended() ? "is suspended" : "runs", request.destination());
  if (outcome.from_journal) return text + '\n';
  return text + fmt::format(" as {}: {}; sent {} of VRAM and {} of images\n",
                            report.destination_pid(), contents_of(report),
                            format_bytes(report.sent_vram_bytes()),
                            format_bytes(report.sent_image_bytes()));
}

std::string head_of_checkpoint(const Order& order, const Outcome& outcome) {
  const proto::MigrateRequest& request = order.request.migrate_request();
  const proto::MigrateReport& report = outcome.report;
  std::string text =
      fmt::format("process {} of {} has a checkpoint in {}{}", request.pid(),
                  order.agent.endpoint.to_string(), printable(request.checkpoint().directory()),
                  request.checkpoint().stop() ? ", and was ended" : "");
  if (outcome.from_journal) return text + '\n';
  return text + fmt::format(": {}, {}; {} stored, {} were already stored\n", name_of(report),
                            contents_of(report), format_bytes(report.stored_bytes()),
                            format_bytes(report.shared_bytes()));
}

std::string head_of_restore(const Order& order, const Outcome& outcome) {
  const proto::MigrateReport& report = outcome.report;
  std::string text = fmt::format("a checkpoint in {} runs at {}",
                                 printable(order.request.load_request().directory()),
                                 order.agent.endpoint.to_string());
  if (outcome.from_journal) return text + '\n';
  return text + fmt::format(" as {}: {}, {}\n", report.destination_pid(), name_of(report),
                            contents_of(report));
}

std::string head_of(const Order& order, const Outcome& outcome) {
  switch (task_of(order)) {
    case Task::kCheckpoint:
      return head_of_checkpoint(order, outcome);
    case Task::kRestore:
      return head_of_restore(order, outcome);
    default:
      return head_of_migration(order, outcome);
  }
}

}  // namespace

std::string summary(const Order& order, const Outcome& outcome) {
  const Task task = task_of(order);
  if (outcome.exit_code != ExitCode::kMigrated || outcome.detached) return last_line(task, outcome);
  const proto::MigrateReport& report = outcome.report;
  std::string text = head_of(order, outcome);
  append_phases(text, report);
  append_rounds(text, report);
  append_switchover(text, task, report);
  append_images(text, report);
  append_prefill(text, task, report);
  append_clock(text, report);
  for (const std::string& note : report.notes()) {
    text += fmt::format("  note: {}\n", printable(note));
  }
  return text + last_line(task, outcome);
}

std::string last_line(Task task, const Outcome& outcome) {
  const proto::MigrateReport& report = outcome.report;
  if (outcome.detached) {
    return fmt::format("{} {}\n", to_string(task), to_uuid(report.migration_id()).to_string());
  }
  if (outcome.exit_code != ExitCode::kMigrated) return "";
  const std::string begin =
      task == Task::kCheckpoint
          ? fmt::format("checkpointed name={}", name_of(report))
          : fmt::format("{} pid={}", task == Task::kRestore ? "restored" : "migrated",
                        pid_of(report));
  if (outcome.from_journal) return begin + '\n';
  const char* verified = report.verified() ? "yes" : "no";
  switch (task) {
    case Task::kCheckpoint:
      return fmt::format(
          "{} vram_bytes={} standstill_ms={:.1f} total_ms={:.1f} stored_bytes={} shared_bytes={} "
          "processes={}\n",
          begin, report.vram_bytes(), report.downtime_ms(), report.total_ms(),
          report.stored_bytes(), report.shared_bytes(), report.processes());
    case Task::kRestore:
      return fmt::format("{} vram_bytes={} total_ms={:.1f} verified={} processes={}\n", begin,
                         report.vram_bytes(), report.total_ms(), verified, report.processes());
    default:
      return fmt::format(
          "{} vram_bytes={} downtime_ms={:.1f} total_ms={:.1f} verified={} processes={}\n", begin,
          report.vram_bytes(), report.downtime_ms(), report.total_ms(), verified,
          report.processes());
  }
}

}  // namespace gcr::cli

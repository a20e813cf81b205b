// `gcr-migrate suspend`, `resume` and `swap`.
#include <fmt/format.h>

#include <memory>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/cli/command.h"
#include "src/cli/json.h"
#include "src/cli/migration_view.h"
#include "src/cli/request_options.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {
namespace {

using control::printable;

/// Version of the JSON.
constexpr int kSchema = 1;

constexpr const char* kDeviceMap =
    "Which GPU takes the place of which, by UUID (default, and for those that are not named: the "
    "agent chooses)";

constexpr const char* kSuspendFooter = R"(
The last line on standard output after success:
  suspended|resumed pid=<n> vram_bytes=<n> copy_ms=<x> standstill_ms=<x> total_ms=<x>
Ctrl-C cancels the order unless it is already decided. Exit status: as for a migration; after 1 and
7 the process is as it was before.)";

/// The command line of suspend, resume and swap.
struct OrderLine {
  CLI::App* command = nullptr;
  std::string host;
  int second = 0;  ///< PID2 of swap
  google::protobuf::RepeatedPtrField<proto::GpuPair> device_map;
  control::TlsFiles tls;
  int pid = 0;
  Order order;  ///< all but its request
};

std::string rate(double bytes, double ms) {
  return ms > 0 ? fmt::format("{:.1f} GB/s", bytes / ms / 1e6) : "-";
}

std::string last_line(Task task, const Outcome& outcome, int pid) {
  const proto::MigrateReport& report = outcome.report;
  const char* done = task == Task::kResume ? "resumed" : "suspended";
  if (outcome.from_journal) return fmt::format("{} pid={}\n", done, pid);
  return fmt::format(
      "{} pid={} vram_bytes={} copy_ms={:.1f} standstill_ms={:.1f} total_ms={:.1f}\n", done, pid,
      report.vram_bytes(), report.suspension().copy_ms(), report.suspension().standstill_ms(),
      report.total_ms());
}

std::string text_of(const proto::MigrateReport& report, int pid) {
  const proto::Suspension& suspension = report.suspension();
  const auto bytes = static_cast<double>(report.vram_bytes());
  std::string text = fmt::format(
      "process {} {}: {} of VRAM in {} buffers, copied at {}; {} at {} in all\n", pid,
      suspension.resumed() ? "runs again" : "is suspended", format_bytes(report.vram_bytes()),
      report.buffers(), rate(bytes, suspension.copy_ms()),
      suspension.resumed() ? "back" : "at a standstill, and off the GPU,",
      rate(bytes, suspension.standstill_ms()));
  for (const proto::PhaseTime& phase : report.phases()) {
    text += fmt::format("  {:>12.1f} {:>12.1f}  {:<12}  {}\n", phase.start_ms(),
                        phase.duration_ms(), printable(phase.track()), printable(phase.name()));
  }
  for (const std::string& note : report.notes()) {
    text += fmt::format("  note: {}\n", printable(note));
  }
  return text;
}

std::string json_of(const Outcome& outcome, int pid) {
  Struct object;
  set(object, "schema", kSchema);
  set(object, "exit_status", static_cast<double>(outcome.exit_code));
  const proto::MigrateReport& report = outcome.report;
  const Uuid id = to_uuid(report.migration_id());
  set(object, "migration_id", id == Uuid{} ? "" : id.to_string());
  set(object, "pid", pid);
  set_fields(object, report,
             {"code", "message", "vram_bytes", "buffers", "processes", "total_ms", "process_ended",
              "recovering"});
  set_fields(set_object(object, "suspension"), report.suspension(),
             {"resumed", "done", "copy_ms", "standstill_ms", "hugepages"});
  return to_json(object) + "\n";
}

/// Shows one order.
class SuspensionView : public MigrationView {
 public:
  SuspensionView(const Order& order, int pid) : order_(order), pid_(pid) {}

  void event(const std::string& phase, const std::string& text) override {
    if (order_.json || order_.quiet) return;
    print_now(fmt::format("{}: {}\n", printable(phase), printable(text)));
  }
  void ended(const Outcome& outcome) override {
    if (order_.json) return print_now(json_of(outcome, pid_));
    if (outcome.exit_code != ExitCode::kMigrated) return;
    const bool brief = order_.quiet || outcome.from_journal;
    print_now((brief ? "" : text_of(outcome.report, pid_)) +
              last_line(task_of(order_), outcome, pid_));
  }

 private:
  const Order& order_;
  const int pid_;
};

ExitCode carry_out(const Order& order, int pid) {
  SuspensionView view(order, pid);
  return show_outcome(view, task_of(order), perform(order, view));
}

ExitCode suspend(const OrderLine& line) {
  Order order = line.order;
  order.request.mutable_suspend_request()->set_pid(line.pid);
  return carry_out(order, line.pid);
}

ExitCode resume_process(const OrderLine& line, int pid) {
  Order order = line.order;
  order.request.mutable_resume_request()->set_pid(pid);
  *order.request.mutable_resume_request()->mutable_device_map() = line.device_map;
  return carry_out(order, pid);
}

ExitCode resume(const OrderLine& line) { return resume_process(line, line.pid); }

/// Suspends one job and resumes the other. If this command is interrupted, each job runs or is
/// suspended.
ExitCode swap(const OrderLine& line) {
  const ExitCode suspended = suspend(line);
  if (suspended != ExitCode::kMigrated) return suspended;
  const ExitCode resumed = resume_process(line, line.second);
  if (resumed == ExitCode::kMigrated) return resumed;
  complain(
      fmt::format("process {} was not resumed: resuming process {} again", line.second, line.pid));
  OrderLine back = line;
  back.device_map.Clear();
  const ExitCode again = resume(back);
  return again == ExitCode::kMigrated ? resumed : again;
}

using Work = ExitCode (*)(const OrderLine& line);

ExitCode run(OrderLine& line, Work work) {
  auto agent = find_agent(line.host, line.tls);
  if (!agent) return wrong_usage(agent.error().message());
  line.order.agent = *std::move(agent);
  return work(line);
}

std::shared_ptr<OrderLine> add(CLI::App& app, Commands& commands, const char* name,
                               const char* description, Work work) {
  const auto line = std::make_shared<OrderLine>();
  CLI::App* const command = line->command = app.add_subcommand(name, description);
  command->footer(kSuspendFooter);
  command
      ->add_option("HOST", line->host,
                   "Where the process is: host or host:port of its agent; or \"local\" (or "
                   "\"unix:/PATH\") for your own process on this host, without a certificate")
      ->required();
  command->add_option("PID", line->pid, "The process, as the agent sees it")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", line->order.json,
                    "Print one JSON object for each order and nothing else");
  command->add_flag("--quiet", line->order.quiet, "Print nothing but errors and the last line");
  describe_certificates(*command, line->tls);
  commands[command] = [line, work] { return run(*line, work); };
  return line;
}

}  // namespace

void add_suspensions(CLI::App& app, Commands& commands) {
  add(app, commands, "suspend",
      "gcr-migrate suspend HOST PID: take a job off its GPUs; its memory there goes into host "
      "memory, and its processes are frozen until `resume`",
      suspend);
  auto line = add(app, commands, "resume", "gcr-migrate resume HOST PID: run a suspended job again",
                  resume);
  describe_gpus(*line->command, line->device_map, kDeviceMap);
  line =
      add(app, commands, "swap",
          "gcr-migrate swap HOST PID PID2: suspend PID, and resume PID2, which was suspended; if "
          "that fails, PID runs again",
          swap);
  line->command->add_option("PID2", line->second, "The suspended process")
      ->required()
      ->check(CLI::PositiveNumber);
  describe_gpus(*line->command, line->device_map, kDeviceMap);
}

}  // namespace gcr::cli

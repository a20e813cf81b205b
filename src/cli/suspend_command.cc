// `gcr-migrate suspend`, `resume` and `swap`: each order is a conversation with the agent as a
// migration's is: the request, what happens, the report.
#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/signal_set.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <memory>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/cli/agents.h"
#include "src/cli/command.h"
#include "src/cli/json.h"
#include "src/cli/request_options.h"
#include "src/cli/terminal_block.h"
#include "src/control/ask.h"

namespace gcr::cli {
namespace {

using asio::awaitable;
using control::ControlChannel;
using control::printable;

/// As long as it takes: a vanished agent is noticed by TCP.
constexpr std::chrono::milliseconds kReportTimeout = std::chrono::hours(24);

/// Of the JSON.
constexpr int kSchema = 1;

constexpr const char* kDeviceMap =
    "Which GPU takes the place of which, by UUID (default, and for those that are not named: the "
    "agent chooses)";

constexpr const char* kSuspendFooter = R"(
The last line on standard output after success:
  suspended|resumed pid=<n> vram_bytes=<n> copy_ms=<x> standstill_ms=<x> total_ms=<x>
Ctrl-C cancels what is not decided yet. Exit status: as for a migration; after 1 and 7 the process is
as it was before.)";

/// As the command line has them.
struct OrderLine {
  std::string agent;
  int pid = 0;
  int second = 0;  ///< of swap
  google::protobuf::RepeatedPtrField<proto::GpuPair> device_map;
  bool json = false;
  bool quiet = false;
  control::TlsFiles tls;
};

/// One order and its report. Belongs to the thread that runs the io_context.
class Conversation {
 public:
  Conversation(asio::io_context& io, control::AgentAddress agent, proto::Envelope request,
               bool tells)
      : signals_(io, SIGINT, SIGTERM),
        agent_(std::move(agent)),
        request_(std::move(request)),
        tells_(tells) {}

  awaitable<Outcome> run() {
    using asio::experimental::awaitable_operators::operator||;
    const control::Preface preface{control::ConnectionKind::kControl, {}};
    auto channel =
        co_await ControlChannel::connect(agent_.endpoint, preface, agent_.tls, agent_.silence);
    if (!channel) co_return outcome_of(channel.error(), false);
    channel_ = std::move(*channel);
    const Status sent = co_await channel_->send(request_);
    if (!sent) co_return outcome_of(sent.error(), false);
    auto ended = co_await (follow() || heed_signals());
    channel_->close();
    co_return std::get<0>(std::move(ended));
  }

 private:
  /// Until the report, or a Failure, which an agent sends only before it touches anything.
  awaitable<Outcome> follow() {
    for (;;) {
      const auto message = co_await channel_->receive(kReportTimeout);
      if (!message) co_return outcome_of(message.error(), true);
      if (message->has_migrate_report()) co_return outcome_of(message->migrate_report());
      if (message->has_failure()) {
        const Error failure = control::from_failure(message->failure());
        co_return outcome_of(failure, failure.code() == Code::kInternal);
      }
      if (!message->has_event() || !tells_) continue;
      print_now(fmt::format("{}: {}\n", printable(message->event().phase()),
                            printable(message->event().text())));
    }
  }

  /// Each asks the agent to cancel; the report says what became of it.
  awaitable<void> heed_signals() {
    for (;;) {
      std::error_code error;
      co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return;
      proto::Envelope cancel;
      cancel.mutable_cancel_request();
      const Status sent = co_await channel_->send(cancel);
      if (!sent) complain(printable(sent.error().message()));
    }
  }

  asio::signal_set signals_;
  control::AgentAddress agent_;
  proto::Envelope request_;
  bool tells_;
  std::unique_ptr<ControlChannel> channel_;
};

std::string rate(double bytes, double ms) {
  return ms > 0 ? fmt::format("{:.1f} GB/s", bytes / ms / 1e6) : "-";
}

std::string last_line(const proto::MigrateReport& report, int pid) {
  return fmt::format(
      "{} pid={} vram_bytes={} copy_ms={:.1f} standstill_ms={:.1f} total_ms={:.1f}\n",
      report.suspension().resumed() ? "resumed" : "suspended", pid, report.vram_bytes(),
      report.suspension().copy_ms(), report.suspension().standstill_ms(), report.total_ms());
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

/// What became of the process is said where it is not as it was before.
std::string error_of(const Outcome& outcome) {
  const bool as_before =
      outcome.report.suspension().resumed() && outcome.exit_code != ExitCode::kUnknown;
  return as_before ? printable(outcome.report.message()) : error_line(Task::kMigration, outcome);
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

/// Carries out one order and prints what came of it.
ExitCode carry_out(const OrderLine& line, const control::AgentAddress& agent,
                   proto::Envelope request, int pid) {
  asio::io_context io(1);
  Conversation order(io, agent, std::move(request), !line.json && !line.quiet);
  Outcome outcome =
      outcome_of(Error(Code::kInternal, "internal error: unexpected exception"), true);
  asio::co_spawn(io, order.run(), [&](const std::exception_ptr& exception, Outcome result) {
    if (!exception) outcome = std::move(result);
  });
  io.run();
  const bool done = outcome.report.suspension().done();
  if (done) outcome.exit_code = ExitCode::kMigrated;
  if (line.json) print_now(json_of(outcome, pid));
  if (done && !line.json) {
    print_now((line.quiet ? "" : text_of(outcome.report, pid)) + last_line(outcome.report, pid));
  }
  if (!done) complain(error_of(outcome));
  return outcome.exit_code;
}

ExitCode suspend(const OrderLine& line, const control::AgentAddress& agent) {
  proto::Envelope request;
  request.mutable_suspend_request()->set_pid(line.pid);
  return carry_out(line, agent, std::move(request), line.pid);
}

ExitCode resume(const OrderLine& line, const control::AgentAddress& agent, int pid) {
  proto::Envelope request;
  request.mutable_resume_request()->set_pid(pid);
  *request.mutable_resume_request()->mutable_device_map() = line.device_map;
  return carry_out(line, agent, std::move(request), pid);
}

/// Two jobs take turns. Wherever this command is interrupted, each job runs or is suspended.
ExitCode swap(const OrderLine& line, const control::AgentAddress& agent) {
  const ExitCode suspended = suspend(line, agent);
  if (suspended != ExitCode::kMigrated) return suspended;
  const ExitCode resumed = resume(line, agent, line.second);
  if (resumed == ExitCode::kMigrated) return resumed;
  complain(
      fmt::format("process {} was not resumed: resuming process {} again", line.second, line.pid));
  OrderLine back = line;
  back.device_map.Clear();
  const ExitCode again = resume(back, agent, line.pid);
  return again == ExitCode::kMigrated ? resumed : again;
}

using Work = ExitCode (*)(const OrderLine& line, const control::AgentAddress& agent);

ExitCode run(const OrderLine& line, Work work) {
  const auto named = find_agent(line.agent, line.tls);
  if (!named) return wrong_usage(named.error().message());
  const auto agent = with_certificates(*named);
  if (!agent) return fail(ExitCode::kUsage, agent.error().message());
  return work(line, *agent);
}

std::shared_ptr<OrderLine> add(CLI::App& app, Commands& commands, const char* name,
                               const char* description, Work work, CLI::App** added) {
  const auto line = std::make_shared<OrderLine>();
  CLI::App* command = app.add_subcommand(name, description);
  command->footer(kSuspendFooter);
  command
      ->add_option("HOST", line->agent,
                   "Where the process is: host or host:port of its agent; or \"local\" (or "
                   "\"unix:/PATH\") for a process of your own on this host, without a certificate")
      ->required();
  command->add_option("PID", line->pid, "The process, as the agent sees it")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", line->json, "Print one JSON object for each order and nothing else");
  command->add_flag("--quiet", line->quiet, "Print nothing but errors and the last line");
  describe_certificates(*command, line->tls);
  commands[command] = [line, work] { return run(*line, work); };
  *added = command;
  return line;
}

}  // namespace

void add_suspensions(CLI::App& app, Commands& commands) {
  CLI::App* command = nullptr;
  add(app, commands, "suspend",
      "gcr-migrate suspend HOST PID: take a job off its GPUs; its memory there goes into host "
      "memory, and its processes stand still until `resume`",
      suspend, &command);
  auto line = add(
      app, commands, "resume", "gcr-migrate resume HOST PID: let a suspended job run again",
      [](const OrderLine& one, const control::AgentAddress& agent) {
        return resume(one, agent, one.pid);
      },
      &command);
  describe_gpus(*command, line->device_map, kDeviceMap);
  line =
      add(app, commands, "swap",
          "gcr-migrate swap HOST PID PID2: suspend PID, and let PID2 run, which was suspended; if "
          "that fails, PID runs again",
          swap, &command);
  command->add_option("PID2", line->second, "The suspended process")
      ->required()
      ->check(CLI::PositiveNumber);
  describe_gpus(*command, line->device_map, kDeviceMap);
}

}  // namespace gcr::cli

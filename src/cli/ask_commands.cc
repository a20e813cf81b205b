#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "src/base/uuid.h"
#include "src/cli/agents.h"
#include "src/cli/answer_text.h"
#include "src/cli/command.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {
namespace {

using control::AgentAddress;
using proto::Envelope;
using proto::ResolveRequest;

constexpr const char* kResolveFooter = R"(
For a migration that the agents can no longer settle: the other host is gone for good, after the
destination had the process ready. You confirm that the other host will never run its copy; then the
copy here runs, or is killed.)";

constexpr std::size_t kLeastIdCharacters = 8;

/// Timeouts of requests for which the agent may have to wait for others.
constexpr std::chrono::milliseconds kCancelTimeout = std::chrono::seconds(30);
constexpr std::chrono::milliseconds kResolveTimeout = std::chrono::minutes(5);
constexpr std::chrono::milliseconds kWatchInterval = std::chrono::seconds(1);

/// A command that sends one request to an agent.
struct Ask {
  CLI::App* app = nullptr;
  std::string agent;
  std::string id;     ///< a UUID or a prefix of it; empty if the request concerns no migration
  Envelope question;  ///< without the id
  std::optional<std::chrono::milliseconds> timeout{};  ///< if longer than the default
  const char* done = "";  ///< printed about the migration if the reply has no text
  bool watch = false;     ///< repeat until the migration is finished
  bool json = false;
  control::TlsFiles tls;
};

/// Returns the request's message and its field for the migration's id.
std::pair<google::protobuf::Message*, const google::protobuf::FieldDescriptor*> id_field(
    Envelope& question) {
  const auto& reflection = *question.GetReflection();
  const auto* oneof = question.GetDescriptor()->FindOneofByName("body");
  auto* body =
      reflection.MutableMessage(&question, reflection.GetOneofFieldDescriptor(question, oneof));
  return {body, body->GetDescriptor()->FindFieldByName("migration_id")};
}

Status check_id(std::string& id) {
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool good = id.find_first_not_of("0123456789abcdef-") == std::string::npos;
  if (good && id.size() >= kLeastIdCharacters) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("an ID is a migration's UUID or at least {} characters of it, not \"{}\"",
                  kLeastIdCharacters, control::printable(id)));
}

/// Checks the command line. kInvalidArgument says what is wrong.
Status check(Ask& ask) {
  if (id_field(ask.question).second != nullptr) GCR_TRY(check_id(ask.id));
  const proto::AdjustRequest& set = ask.question.adjust_request();
  if (ask.question.has_adjust_request() && !set.has_max_bandwidth_bytes() &&
      !set.has_downtime_limit_ms()) {
    return Error(Code::kInvalidArgument, "set needs --max-bandwidth or --downtime-limit");
  }
  if (!ask.question.has_resolve_request()) return {};
  const ResolveRequest& resolve = ask.question.resolve_request();
  if (resolve.decision() == ResolveRequest::DECISION_INVALID) {
    return Error(Code::kInvalidArgument, "resolve needs --run-here or --discard-here");
  }
  if (!resolve.peer_is_gone()) {
    return Error(Code::kInvalidArgument,
                 "resolve needs --peer-is-gone: you confirm that the other host's copy will never "
                 "run again");
  }
  return {};
}

/// Returns the agent's migration with this id, or the only one whose id begins with it. kNotFound
/// if there is none, kInvalidArgument, naming them, if there are several.
Result<Uuid> find_migration(const AgentAddress& agent, const std::string& id) {
  if (const auto whole = Uuid::parse(id)) return *whole;
  Envelope question;
  question.mutable_list_request()->set_finished(true);
  GCR_ASSIGN(const Envelope answer, ask_and_wait(agent, question));
  std::set<Uuid> found;
  for (const proto::MigrationStatus& status : answer.list_reply().migrations()) {
    const Uuid uuid = to_uuid(status.migration_id());
    if (uuid.to_string().starts_with(id)) found.insert(uuid);
  }
  if (found.size() == 1) return *found.begin();
  if (found.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("the agent at {} has no migration whose id begins with {}",
                             agent.endpoint.to_string(), id));
  }
  std::string names;
  for (const Uuid& uuid : found) names += " " + uuid.to_string();
  return Error(Code::kInvalidArgument,
               fmt::format("{} migrations begin with {}:{}", found.size(), id, names));
}

std::string text_of(const Migrations& migrations, bool json) {
  return json ? status_json(migrations) : status_table(migrations);
}

std::string text_of(const Ask& ask, const Envelope& answer) {
  switch (answer.body_case()) {
    case Envelope::kStatusReply:
      return text_of(answer.status_reply().migrations(), ask.json);
    case Envelope::kListReply:
      return text_of(answer.list_reply().migrations(), ask.json);
    case Envelope::kHostReply:
      return ask.json ? host_json(answer.host_reply()) : host_text(answer.host_reply());
    case Envelope::kResolveReply:
      return ask.json ? resolve_json(answer.resolve_reply()) : resolve_text(answer.resolve_reply());
    default:
      return ask.json ? fmt::format("{{\"migration_id\":\"{}\"}}\n", ask.id)
                      : fmt::format("migration {} {}\n", ask.id, ask.done);
  }
}

/// Repeats the request and shows every reply except the last, which it returns.
Result<Envelope> watch(const AgentAddress& agent, const Ask& ask) {
  TerminalBlock block;
  const bool in_place = !ask.json && is_terminal();
  for (std::string last;;) {
    auto answer = ask_and_wait(agent, ask.question);
    block.erase();
    if (!answer) return answer;
    const auto& migrations = answer->status_reply().migrations();
    if (std::ranges::all_of(migrations, &proto::MigrationStatus::finished)) return answer;
    std::string text = text_of(ask, *answer);
    if (in_place) {
      block.draw(status_lines(migrations, terminal_size().columns));
    } else if (text != last) {
      print_now(text);
      last = std::move(text);
    }
    std::this_thread::sleep_for(kWatchInterval);
  }
}

Result<Envelope> ask_agent(AgentAddress agent, Ask& ask) {
  if (const auto [body, field] = id_field(ask.question); field != nullptr) {
    GCR_ASSIGN(const Uuid id, find_migration(agent, ask.id));
    body->GetReflection()->SetString(body, field, to_bytes(id));
    ask.id = id.to_string();
  }
  if (ask.timeout) agent.silence = *ask.timeout;
  return ask.watch ? watch(agent, ask) : ask_and_wait(agent, ask.question);
}

ExitCode run(Ask& ask) {
  const auto named = find_agent(ask.agent, ask.tls);
  if (!named) return wrong_usage(named.error().message());
  if (const Status good = check(ask); !good) return wrong_usage(good.error().message());
  const auto agent = with_certificates(*named);
  if (!agent) return fail(ExitCode::kUsage, agent.error().message());
  const auto answer = ask_agent(*agent, ask);
  if (!answer) return fail(untouched_exit_code(answer.error().code()), answer.error().message());
  fmt::print("{}", text_of(ask, *answer));
  return ExitCode::kMigrated;
}

/// Adds a command with the common options; `begin` creates its request.
template <class Body>
Ask& add(CLI::App& app, Commands& commands, const char* name, Body* (Envelope::*begin)(),
         const char* description) {
  const auto ask = std::make_shared<Ask>();
  (ask->question.*begin)();
  ask->app = app.add_subcommand(name, description);
  ask->app
      ->add_option(
          "AGENT", ask->agent,
          "host, host:port, or \"local\" (or \"unix:/PATH\") for this host's agent without "
          "a certificate, about your own processes")
      ->required();
  ask->app->add_flag("--json", ask->json, "Print one JSON object and nothing else");
  describe_certificates(*ask->app, ask->tls);
  if (id_field(ask->question).second != nullptr) {
    ask->app->add_option("ID", ask->id, "The migration's id, or at least 8 characters of it")
        ->required();
  }
  commands[ask->app] = [ask] { return run(*ask); };
  return *ask;
}

void describe_set(CLI::App& app, proto::AdjustRequest& request) {
  app.add_option_function<std::uint64_t>(
         "--max-bandwidth", [&](std::uint64_t bytes) { request.set_max_bandwidth_bytes(bytes); },
         "Send at most this many bytes per second while the process runs; 0: no limit")
      ->option_text("RATE")
      ->transform(CLI::AsSizeValue(true));
  app.add_option_function<double>(
         "--downtime-limit", [&](double ms) { request.set_downtime_limit_ms(ms); },
         "Switch over once the rest can be sent within this many ms")
      ->option_text("MS")
      ->check(CLI::Range(1, 3'600'000));
}

void describe_resolve(CLI::App& app, ResolveRequest& request) {
  app.footer(kResolveFooter);
  app.add_flag_callback(
      "--run-here", [&] { request.set_decision(ResolveRequest::RUN_HERE); },
      "The copy at AGENT runs");
  app.add_flag_callback(
         "--discard-here", [&] { request.set_decision(ResolveRequest::DISCARD_HERE); },
         "The copy at AGENT is killed")
      ->excludes("--run-here");
  app.add_flag_callback(
      "--peer-is-gone", [&] { request.set_peer_is_gone(true); },
      "You confirm that the other host's copy will never run again; otherwise two copies would "
      "run");
  app.add_option_function<int>(
         "--pid", [&](int pid) { request.set_pid(pid); },
         "The process, if AGENT's journal is too damaged to name it")
      ->option_text("PID")
      ->check(CLI::PositiveNumber);
}

}  // namespace

void add_asks(CLI::App& app, Commands& commands) {
  Ask& cancel = add(app, commands, "cancel", &Envelope::mutable_cancel_request,
                    "gcr-migrate cancel AGENT ID: cancel a migration, unless it is committed; "
                    "AGENT is the source's");
  cancel.timeout = kCancelTimeout;
  cancel.done = "is cancelled; the process stays at the source";
  Ask& go_on = add(app, commands, "continue", &Envelope::mutable_continue_request,
                   "gcr-migrate continue AGENT ID: let a migration that was started with "
                   "--pause-before-switchover switch over; AGENT is the source's");
  go_on.done = "continues to its switchover";
  Ask& set = add(app, commands, "set", &Envelope::mutable_adjust_request,
                 "gcr-migrate set AGENT ID: change the limits of a running migration; AGENT is "
                 "the source's");
  set.done = "is changed";
  describe_set(*set.app, *set.question.mutable_adjust_request());
  Ask& status = add(app, commands, "status", &Envelope::mutable_status_request,
                    "gcr-migrate status AGENT ID: the state of a migration, as AGENT knows it");
  status.app->add_flag("--watch", status.watch, "Refresh every second until it is finished");
  Ask& list = add(app, commands, "list", &Envelope::mutable_list_request,
                  "gcr-migrate list AGENT: the migrations that are not finished");
  list.app->add_flag_callback(
      "--all", [&list] { list.question.mutable_list_request()->set_finished(true); },
      "Also list finished migrations");
  add(app, commands, "host", &Envelope::mutable_host_request,
      "gcr-migrate host AGENT: the GPUs of AGENT's host, the jobs that can be moved away, and "
      "the running migrations");
  Ask& resolve = add(app, commands, "resolve", &Envelope::mutable_resolve_request,
                     "gcr-migrate resolve AGENT ID --run-here|--discard-here --peer-is-gone: "
                     "decide the outcome of a migration whose other host is lost");
  resolve.timeout = kResolveTimeout;
  describe_resolve(*resolve.app, *resolve.question.mutable_resolve_request());
}

}  // namespace gcr::cli

#include "src/cli/ask_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "src/cli/common_options.h"

namespace gcr::cli {
namespace {

constexpr const char* kResolveFooter = R"(
For a migration that no protocol can settle any more: the other host is gone for good, after the
destination had the process ready. You vouch that the other host will never run its copy; then the
copy here runs, or is killed.)";

constexpr std::size_t kLeastIdCharacters = 8;

using Kind = AskOptions::Kind;

bool names_migration(Kind kind) { return kind != Kind::kList && kind != Kind::kHost; }

CLI::App* describe_ask(CLI::App& app, RawAsk& raw, const char* name, const char* description) {
  CLI::App* command = app.add_subcommand(name, description);
  command
      ->add_option(
          "AGENT", raw.agent,
          "host, host:port, or \"local\" (or \"unix:/PATH\") for this host's agent without "
          "a certificate, about your own processes")
      ->required();
  command->add_flag("--json", raw.options.json, "Print one JSON object and nothing else");
  describe_certificates(*command, raw.options.tls);
  return command;
}

void describe_id(CLI::App& command, RawAsk& raw) {
  command.add_option("ID", raw.options.id, "The migration's id, or at least 8 characters of it")
      ->required();
}

void describe_set(CLI::App& command, RawAsk& raw) {
  command
      .add_option("--max-bandwidth", raw.options.max_bandwidth_bytes,
                  "Send at most this many bytes per second while the process runs; 0: no limit")
      ->option_text("RATE")
      ->transform(CLI::AsSizeValue(true));
  command
      .add_option("--downtime-limit", raw.options.downtime_limit_ms,
                  "Switch over once the rest can be sent within this many ms")
      ->option_text("MS")
      ->check(CLI::Range(1, 3'600'000));
}

void describe_resolve(CLI::App& command, RawAsk& raw) {
  command.footer(kResolveFooter);
  command.add_flag("--run-here", raw.options.run_here, "The copy at AGENT runs");
  command.add_flag("--discard-here", raw.discard_here, "The copy at AGENT is killed")
      ->excludes("--run-here");
  command.add_flag(
      "--peer-is-gone", raw.options.peer_is_gone,
      "You vouch that the other host's copy will never run again; if it did, there would be two");
  command
      .add_option("--pid", raw.options.pid,
                  "The process, if AGENT's journal is too damaged to name it")
      ->option_text("PID")
      ->check(CLI::PositiveNumber);
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

}  // namespace

AskCommands describe_asks(CLI::App& app, RawAsk& raw) {
  AskCommands commands;
  const auto add = [&](Kind kind, const char* name, const char* description) -> CLI::App& {
    CLI::App* command = describe_ask(app, raw, name, description);
    if (names_migration(kind)) describe_id(*command, raw);
    commands[kind] = command;
    return *command;
  };
  add(Kind::kCancel, "cancel",
      "gcr-migrate cancel AGENT ID: cancel a migration, unless it is committed; AGENT is the "
      "source's");
  add(Kind::kContinue, "continue",
      "gcr-migrate continue AGENT ID: let a migration that was started with "
      "--pause-before-switchover switch over; AGENT is the source's");
  describe_set(
      add(Kind::kSet, "set",
          "gcr-migrate set AGENT ID: change the limits of a migration under way; AGENT is the "
          "source's"),
      raw);
  add(Kind::kStatus, "status", "gcr-migrate status AGENT ID: what AGENT knows of a migration")
      .add_flag("--watch", raw.options.watch, "Ask again every second until it is finished");
  add(Kind::kList, "list", "gcr-migrate list AGENT: the migrations that are not finished")
      .add_flag("--all", raw.options.all, "Also those that are finished");
  add(Kind::kHost, "host",
      "gcr-migrate host AGENT: the GPUs of AGENT's host, the processes that can be moved away, and "
      "the migrations under way");
  describe_resolve(add(Kind::kResolve, "resolve",
                       "gcr-migrate resolve AGENT ID --run-here|--discard-here --peer-is-gone: "
                       "decide what the agents cannot, because the other host is lost"),
                   raw);
  return commands;
}

Kind kind_of(const AskCommands& commands) {
  const auto parsed =
      std::ranges::find_if(commands, [](const auto& entry) { return entry.second->parsed(); });
  return parsed == commands.end() ? Kind::kInvalid : parsed->first;
}

Result<AskOptions> check(const RawAsk& raw, AskOptions::Kind kind) {
  AskOptions options = raw.options;
  options.kind = kind;
  GCR_ASSIGN(options.agent, find_agent(raw.agent, options.tls));
  options.tls = with_defaults(options.tls);
  if (names_migration(kind)) GCR_TRY(check_id(options.id));
  if (kind == AskOptions::Kind::kSet && !options.max_bandwidth_bytes &&
      !options.downtime_limit_ms) {
    return Error(Code::kInvalidArgument, "set needs --max-bandwidth or --downtime-limit");
  }
  if (kind != AskOptions::Kind::kResolve) return options;
  if (options.run_here == raw.discard_here) {
    return Error(Code::kInvalidArgument, "resolve needs --run-here or --discard-here");
  }
  if (!options.peer_is_gone) {
    return Error(
        Code::kInvalidArgument,
        "resolve needs --peer-is-gone: you vouch that the other host's copy will never run again");
  }
  return options;
}

}  // namespace gcr::cli

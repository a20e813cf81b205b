// Options that several of the commands have which order an agent to do something to a job. What an
// option says goes into the request, which outlives `app`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/cli/order.h"

namespace gcr::cli {

/// An option whose value the message's `set` takes.
template <class Message, class Value>
CLI::Option* add_option(CLI::App& app, const char* name, Message& message,
                        void (Message::*set)(Value), const char* text) {
  return app.add_option_function<Value>(
      name, [&message, set](const Value& value) { (message.*set)(value); }, text);
}

template <class Message>
CLI::Option* add_flag(CLI::App& app, const char* name, Message& message, void (Message::*set)(bool),
                      const char* text) {
  return app.add_flag_callback(
      name, [&message, set] { (message.*set)(true); }, text);
}

void describe_downtime_limit(CLI::App& app, proto::MigrateRequest& request);

/// That limit, and what else pre-copy heeds.
void describe_pre_copy(CLI::App& app, proto::MigrateRequest& request);

/// By what the process is told from another one that has its PID later.
void describe_start_time(CLI::App& app, proto::MigrateRequest& request);

/// What it may ask of the job. `closed` says what `--tcp close` does.
void describe_concessions(CLI::App& app, proto::MigrateRequest& request, const char* closed);

void describe_compression(CLI::App& app, proto::MigrateRequest& request, const char* text);

void describe_gpus(CLI::App& app, google::protobuf::RepeatedPtrField<proto::GpuPair>& map,
                   const char* text);

/// --trace, --json, --quiet and --detach.
void describe_output(CLI::App& app, Order& order);

/// What every MigrateRequest says that no option has changed.
void set_defaults(proto::MigrateRequest& request);

/// kInvalidArgument unless it can be a directory of checkpoints on an agent's host.
Status check_checkpoints(const std::string& directory);

/// A number above 0.
Result<int> parse_pid(const std::string& text);

}  // namespace gcr::cli

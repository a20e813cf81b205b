// Options that several commands share which order an agent to do something to a job. Their values
// are stored in the request, which must outlive `app`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "src/cli/order.h"

namespace gcr::cli {

/// Adds an option whose value is passed to the message's `set`.
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

/// Adds --downtime-limit and the other options of pre-copy.
void describe_pre_copy(CLI::App& app, proto::MigrateRequest& request);

/// Adds --start-time, which identifies the process in case another one gets its PID later.
void describe_start_time(CLI::App& app, proto::MigrateRequest& request);

/// Adds the options by which an operator accepts restrictions.
void describe_concessions(CLI::App& app, proto::MigrateRequest& request);

/// Adds --tcp.
void describe_tcp(CLI::App& app, proto::MigrateRequest& request, bool or_keep, const char* text);

void describe_compression(CLI::App& app, proto::MigrateRequest& request, const char* text);

void describe_gpus(CLI::App& app, google::protobuf::RepeatedPtrField<proto::GpuPair>& map,
                   const char* text);

/// Adds --container; `message` gives the message that is filled, if the option is used. `or_new`:
/// the option may be "new", for a container that will be made; the message is empty then.
void describe_container(CLI::App& app, std::function<proto::ReceivingContainer&()> message,
                        const std::string& text, bool or_new = false);

/// Adds --max-layer.
void describe_max_layer(CLI::App& app, proto::MigrateRequest& request);

/// Adds --trace, --json, --quiet and --detach.
void describe_output(CLI::App& app, Order& order);

/// Sets the values that a MigrateRequest has without any option.
void set_defaults(proto::MigrateRequest& request);

/// Checks that the path can be a directory of checkpoints on an agent's host: kInvalidArgument if
/// it is not absolute.
Status check_checkpoints(const std::string& directory);

/// Parses a number above 0.
Result<int> parse_pid(const std::string& text);

}  // namespace gcr::cli

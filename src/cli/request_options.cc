#include "src/cli/request_options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <utility>
#include <vector>

namespace gcr::cli {
namespace {

using proto::MigrateRequest;

const std::map<std::string, proto::Compression> kCompressions{{"auto", proto::COMPRESSION_AUTO},
                                                              {"none", proto::COMPRESSION_NONE},
                                                              {"lz4", proto::COMPRESSION_LZ4},
                                                              {"zstd", proto::COMPRESSION_ZSTD}};

/// Parses "GPU=GPU"; throws CLI::ValidationError for any other text.
proto::GpuPair parse_pair(const std::string& text) {
  const std::size_t middle = text.find('=');
  const auto from = parse_gpu(text.substr(0, middle));
  const auto to = middle == text.npos ? std::nullopt : parse_gpu(text.substr(middle + 1));
  if (!from || !to) {
    throw CLI::ValidationError(
        "--device-map", control::printable(text) + " is not two UUIDs of GPUs with = between them");
  }
  proto::GpuPair pair;
  pair.set_source_uuid(to_bytes(*from));
  pair.set_destination_uuid(to_bytes(*to));
  return pair;
}

/// Parses "4711:0123456789abcdef0123456789abcdef"; throws CLI::ValidationError for any other text.
proto::ReceivingContainer parse_container(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto init = parse_pid(text.substr(0, colon));
  if (!init || colon == text.npos || colon + 1 == text.size()) {
    throw CLI::ValidationError("--container",
                               "\"" + control::printable(text) + "\" is not PID:KEY");
  }
  proto::ReceivingContainer container;
  container.set_init(*init);
  container.set_key(text.substr(colon + 1));
  return container;
}

}  // namespace

void describe_downtime_limit(CLI::App& app, MigrateRequest& request) {
  add_option(app, "--downtime-limit", request, &MigrateRequest::set_downtime_limit_ms,
             "Switch over once the rest can be sent within this many ms (default 300)")
      ->option_text("MS")
      ->check(CLI::Range(1, 3'600'000));
}

void describe_pre_copy(CLI::App& app, MigrateRequest& request) {
  describe_downtime_limit(app, request);
  add_option(app, "--max-rounds", request, &MigrateRequest::set_max_rounds,
             "Switch over after this many rounds in any case (default 30)")
      ->option_text("N")
      ->check(CLI::Range(1, 1000));
  add_option(app, "--max-bandwidth", request, &MigrateRequest::set_max_bandwidth_bytes,
             "Send at most this many bytes per second while the process runs: 800M, 2GiB (default: "
             "no limit)")
      ->option_text("RATE")
      ->transform(CLI::AsSizeValue(true));
  add_flag(app, "--auto-converge", request, &MigrateRequest::set_auto_converge,
           "Throttle the process if it changes GPU memory faster than it can be sent");
  add_flag(app, "--strict", request, &MigrateRequest::set_strict,
           "Fail, leaving the process where it is, rather than exceed the downtime limit");
  add_flag(app, "--pause-before-switchover", request, &MigrateRequest::set_pause_before_switchover,
           "Stay in pre-copy until `gcr-migrate continue`");
}

void describe_start_time(CLI::App& app, MigrateRequest& request) {
  add_option(app, "--start-time", request, &MigrateRequest::set_start_time,
             "Refuse unless this is the process's start_time in `gcr-migrate host --json`")
      ->option_text("TICKS");
}

void describe_tcp(CLI::App& app, MigrateRequest& request, bool or_keep, const char* text) {
  const std::vector<std::string> choices = or_keep
                                               ? std::vector<std::string>{"refuse", "close", "keep"}
                                               : std::vector<std::string>{"refuse", "close"};
  app.add_option_function<std::string>(
         "--tcp",
         [&request](const std::string& value) {
           request.set_close_tcp(value == "close");
           request.set_keep_tcp(value == "keep");
         },
         text)
      ->option_text(CLI::detail::join(choices, "|"))
      ->check(CLI::IsMember(choices));
}

void describe_concessions(CLI::App& app, MigrateRequest& request) {
  add_flag(app, "--allow-slow", request, &MigrateRequest::set_allow_slow,
           "Also move a program that was not started under `gcr-migrate run`, through the driver "
           "alone: it is stopped until all its GPU memory has been sent");
  app.add_option_function<std::vector<std::string>>(
         "--accept",
         [&request](const std::vector<std::string>& ids) {
           request.mutable_accepted()->Assign(ids.begin(), ids.end());
         },
         "Continue despite these preflight blockers; only these can be accepted: address-unheard, "
         "busy-gpu, landlock, mdwe, mseal")
      ->option_text("ID,…")
      ->delimiter(',')
      ->allow_extra_args(false);
}

void describe_compression(CLI::App& app, MigrateRequest& request, const char* text) {
  add_option(app, "--compression", request, &MigrateRequest::set_compression, text)
      ->option_text("auto|none|lz4|zstd")
      ->transform(CLI::CheckedTransformer(kCompressions));
}

void describe_gpus(CLI::App& app, google::protobuf::RepeatedPtrField<proto::GpuPair>& map,
                   const char* text) {
  app.add_option_function<std::vector<std::string>>(
         "--device-map",
         [&map](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) *map.Add() = parse_pair(pair);
         },
         text)
      ->option_text("GPU=GPU,…")
      ->delimiter(',')
      ->allow_extra_args(false);
}

void describe_container(CLI::App& app, std::function<proto::ReceivingContainer&()> message,
                        const std::string& text, bool or_new) {
  app.add_option_function<std::string>(
         "--container",
         [message = std::move(message), or_new](const std::string& given) {
           const bool is_new = or_new && given == "new";
           message() = is_new ? proto::ReceivingContainer() : parse_container(given);
         },
         text + (or_new ? "; or \"new\": one that will be made" : ""))
      ->option_text(or_new ? "PID:KEY|new" : "PID:KEY");
}

void describe_max_layer(CLI::App& app, MigrateRequest& request) {
  app.add_option_function<std::uint64_t>(
         "--max-layer", [&request](std::uint64_t bytes) { request.set_max_layer_bytes(bytes); },
         "How much a container may have written to its root, and to each of its tmpfs mounts "
         "(default 1 GiB)")
      ->option_text("SIZE")
      ->transform(CLI::AsSizeValue(false));
}

void describe_output(CLI::App& app, Order& order) {
  app.add_option("--trace", order.trace_path,
                 "Write a timeline to FILE, for Perfetto or chrome://tracing")
      ->option_text("FILE");
  app.add_flag("--json", order.json,
               "Print one JSON object per line, the report last, and nothing else");
  app.add_flag("--quiet", order.quiet, "Print nothing but errors and the last line");
  app.add_flag("--detach", order.detach,
               "Print the id and quit once the agent has accepted the order; see `status`")
      ->excludes("--trace");
}

void set_defaults(MigrateRequest& request) {
  request.set_transport(proto::TRANSPORT_AUTO);
  request.set_max_rounds(30);
}

Status check_checkpoints(const std::string& directory) {
  if (directory.starts_with('/')) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("DIR is a directory of the agent's host, so its path begins with /: "
                           "\"{}\" does not",
                           control::printable(directory)));
}

Result<int> parse_pid(const std::string& text) {
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error == std::errc{} && end == text.data() + text.size() && pid > 0) return pid;
  return Error(Code::kInvalidArgument,
               fmt::format("PID is a number above 0, not \"{}\"", control::printable(text)));
}

}  // namespace gcr::cli

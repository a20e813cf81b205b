#include "src/cli/migrate_options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <memory>

#include "src/base/version.h"
#include "src/cli/command.h"

namespace gcr::cli {
namespace {

using proto::MigrateRequest;

constexpr const char* kFooter = R"(
Exit status:
  0  migrated        migrated; of other commands: done
  1  failed          failed; the process runs on at SRC
  2  usage           wrong usage, or a file that it names cannot be used
  3  refused         refused in preflight, or an order that cannot be followed; nothing was
                     touched
  4  unreachable     an agent cannot be reached; nothing was touched
  5  not-authorised  not authorised; nothing was touched
  6  unknown         contact was lost and the outcome is not known here; the agents settle it,
                     and `gcr-migrate status SRC ID` tells
  7  cancelled       cancelled; the process runs on at SRC
  8  unconfirmed     committed, but DST has not confirmed yet: the process will not run at SRC
                     again; the agents go on, and `gcr-migrate status SRC ID` tells
  9  ended           the process ended by itself before it was moved; it runs nowhere

cancel, continue, set, status, list, host and resolve: 0 on success, else 2 to 5.
suspend, resume and swap: as for a migration; after 1 and 7 the process is as it was before.

Ctrl-C (or SIGTERM) cancels the migration unless it is committed, and waits for the report; a second
one quits at once. If the connection to SRC is lost, the migration goes on, and SRC is asked what
became of it.

The last line on standard output after a migration:
  migrated pid=<n> vram_bytes=<n> downtime_ms=<x> total_ms=<x> verified=yes|no processes=<n>
with the process's PID at DST; if the report was lost, "migrated pid=<n>" or "migrated pid=unknown".
Errors go to standard error, one line.)";

constexpr const char* kPreflightFooter = R"(
Nothing is touched and nothing is reserved. All findings are reported together, blockers first, each
with a stable identifier, why it matters and what to do.

Exit status: 0 if the process can be moved, warnings or not; 3 if there are blockers; else 2, 4 or 5.)";

const std::map<std::string, proto::Compression> kCompressions{{"auto", proto::COMPRESSION_AUTO},
                                                              {"none", proto::COMPRESSION_NONE},
                                                              {"lz4", proto::COMPRESSION_LZ4},
                                                              {"zstd", proto::COMPRESSION_ZSTD}};

const std::map<std::string, proto::ImageMode> kImageModes{{"auto", proto::IMAGE_MODE_AUTO},
                                                          {"stream", proto::IMAGE_MODE_STREAM},
                                                          {"rounds", proto::IMAGE_MODE_ROUNDS}};

const std::map<std::string, proto::Transport> kTransports{{"auto", proto::TRANSPORT_AUTO},
                                                          {"rdma", proto::TRANSPORT_RDMA},
                                                          {"tcp", proto::TRANSPORT_TCP}};

/// As the command line has them; CLI11 cannot check the texts.
struct CommandLine {
  std::string source;
  std::string destination;
  std::string pid;
  control::TlsFiles tls;
  MigrateOptions options;
};

/// An option whose value the request's `set` takes.
template <class Value>
CLI::Option* add_option(CLI::App& app, const char* name, MigrateRequest& request,
                        void (MigrateRequest::*set)(Value), const char* text) {
  return app.add_option_function<Value>(
      name, [&request, set](const Value& value) { (request.*set)(value); }, text);
}

void add_flag(CLI::App& app, const char* name, MigrateRequest& request,
              void (MigrateRequest::*set)(bool), const char* text) {
  app.add_flag_callback(
      name, [&request, set] { (request.*set)(true); }, text);
}

void describe_data(CLI::App& app, MigrateRequest& request) {
  add_option(app, "--transport", request, &MigrateRequest::set_transport,
             "Transport of the data (default auto: RDMA if both hosts have it and both agents may "
             "send unencrypted data, else TCP)")
      ->option_text("auto|rdma|tcp")
      ->transform(CLI::CheckedTransformer(kTransports));
  add_flag(app, "--plaintext", request, &MigrateRequest::set_plaintext,
           "TCP without TLS, if the configuration of both agents allows it");
  add_option(app, "--lanes", request, &MigrateRequest::set_lanes,
             "Data connections; 0: the agents choose")
      ->check(CLI::Range(0, 32));
}

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
           "Stay in pre-copy until `gcr-migrate continue SRC ID`");
  add_flag(app, "--no-prefill", request, &MigrateRequest::set_no_prefill,
           "Fill GPU memory at DST only after the switchover; it need not be free before");
}

/// What a migration may ask of the job.
void describe_concessions(CLI::App& app, MigrateRequest& request) {
  add_flag(app, "--allow-slow", request, &MigrateRequest::set_allow_slow,
           "Also move a program that was not started under `gcr-migrate run`, through the driver "
           "alone: it stands still until all its GPU memory is at DST");
  app.add_option_function<std::string>(
         "--tcp", [&request](const std::string& value) { request.set_close_tcp(value == "close"); },
         "TCP connections with one end outside of the job: refuse the migration (default), or "
         "close "
         "them, so that the program sees at DST that they were reset")
      ->option_text("refuse|close")
      ->check(CLI::IsMember({"refuse", "close"}));
}

/// Throws CLI::ValidationError unless `text` is "GPU=GPU".
proto::GpuPair parse_pair(const std::string& text) {
  const std::size_t middle = text.find('=');
  const auto from = parse_gpu(text.substr(0, middle));
  const auto to = middle == text.npos ? std::nullopt : parse_gpu(text.substr(middle + 1));
  if (!from || !to) {
    throw CLI::ValidationError(
        "--device-map",
        control::printable(text) + " is not a GPU's UUID at SRC, =, and one at DST");
  }
  proto::GpuPair pair;
  pair.set_source_uuid(to_bytes(*from));
  pair.set_destination_uuid(to_bytes(*to));
  return pair;
}

}  // namespace

void describe_device_map(CLI::App& app,
                         google::protobuf::RepeatedPtrField<proto::GpuPair>& device_map) {
  app.add_option_function<std::vector<std::string>>(
         "--device-map",
         [&device_map](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) *device_map.Add() = parse_pair(pair);
         },
         "Which GPU of DST takes the place of which GPU of SRC, by UUID (default, and for those "
         "that are not named: the agents choose)")
      ->option_text("GPU=GPU,…")
      ->delimiter(',')
      ->allow_extra_args(false);
}

namespace {

void describe_images(CLI::App& app, MigrateRequest& request) {
  add_option(app, "--compression", request, &MigrateRequest::set_compression,
             "Compression of the images of the process's ordinary memory (default auto: depends "
             "on the link)")
      ->option_text("auto|none|lz4|zstd")
      ->transform(CLI::CheckedTransformer(kCompressions));
  add_option(app, "--image-mode", request, &MigrateRequest::set_image_mode,
             "Images in one stream at the switchover, or in rounds before it (default auto)")
      ->option_text("auto|stream|rounds")
      ->transform(CLI::CheckedTransformer(kImageModes));
}

void describe_output(CLI::App& app, MigrateOptions& options) {
  app.add_option("--trace", options.trace_path,
                 "Write a timeline of both sides to FILE, for Perfetto or chrome://tracing")
      ->option_text("FILE");
  app.add_flag("--json", options.json,
               "Print one JSON object per line, the report last, and nothing else");
  app.add_flag("--quiet", options.quiet, "Print nothing but errors and the last line");
  app.add_flag("--detach", options.detach,
               "Print `migration ID` and quit as soon as SRC has accepted it; see `status`")
      ->excludes("--trace");
  app.add_option("--on-commit", options.on_commit,
                 "A shell command to run here once the process runs at DST, with GCR_SRC, GCR_DST "
                 "(hosts), GCR_PID (at DST) and GCR_MIGRATION in its environment")
      ->option_text("COMMAND")
      ->excludes("--detach");
}

void describe_process(CLI::App& app, CommandLine& line) {
  app.add_option("SRC", line.source,
                 "Where the process runs: host or host:port of its agent; or \"local\" (or "
                 "\"unix:/PATH\") to move a process of your own away from this host, without a "
                 "certificate");
  app.add_option(
      "DST", line.destination,
      "Where to move it: host or host:port, as SRC sees it; names are looked up in hosts.toml "
      "on this side");
  app.add_option("PID", line.pid, "The process, as the agent at SRC sees it");
}

/// `gcr-migrate SRC DST PID`, on the main command.
void describe_migrate(CLI::App& app, CommandLine& line) {
  app.name("gcr-migrate");
  app.description("Moves a running GPU process from the host SRC to the host DST while it runs.");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("gcr-migrate {} ({})", release(), source_commit()));
  describe_process(app, line);
  describe_data(app, line.options.request);
  describe_pre_copy(app, line.options.request);
  describe_images(app, line.options.request);
  describe_concessions(app, line.options.request);
  describe_device_map(app, *line.options.request.mutable_device_map());
  describe_output(app, line.options);
  describe_certificates(app, line.tls);
}

CLI::App* describe_preflight(CLI::App& app, CommandLine& line) {
  CLI::App* preflight = app.add_subcommand(
      "preflight", "gcr-migrate preflight SRC DST PID: what prevents a migration");
  preflight->footer(kPreflightFooter);
  describe_process(*preflight, line);
  describe_data(*preflight, line.options.request);
  add_flag(*preflight, "--no-prefill", line.options.request, &MigrateRequest::set_no_prefill,
           "As for a migration");
  describe_concessions(*preflight, line.options.request);
  describe_downtime_limit(*preflight, line.options.request);
  describe_device_map(*preflight, *line.options.request.mutable_device_map());
  preflight->add_flag("--json", line.options.json, "Print one JSON object and nothing else");
  describe_certificates(*preflight, line.tls);
  return preflight;
}

/// A number above 0.
Result<int> parse_pid(const std::string& text) {
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error == std::errc{} && end == text.data() + text.size() && pid > 0) return pid;
  return Error(Code::kInvalidArgument,
               fmt::format("PID is a number above 0, not \"{}\"", control::printable(text)));
}

/// kInvalidArgument says what is wrong.
Result<MigrateOptions> check(const CommandLine& line) {
  if (line.source.empty() || line.destination.empty() || line.pid.empty()) {
    return Error(Code::kInvalidArgument, "SRC, DST and PID are needed: gcr-migrate SRC DST PID");
  }
  MigrateOptions options = line.options;
  GCR_ASSIGN(options.source, find_agent(line.source, line.tls));
  GCR_ASSIGN(options.destination, find_destination(line.destination));
  GCR_ASSIGN(const int pid, parse_pid(line.pid));
  options.request.set_destination(options.destination.to_string());
  options.request.set_pid(pid);
  return options;
}

}  // namespace

void add_migrate(CLI::App& app, Commands& commands) {
  const auto line = std::make_shared<CommandLine>();
  line->options.request.set_transport(proto::TRANSPORT_AUTO);
  line->options.request.set_max_rounds(30);
  const auto checked = [line](ExitCode (*command)(const MigrateOptions&)) {
    return [line, command] {
      const auto options = check(*line);
      return options ? command(*options) : wrong_usage(options.error().message());
    };
  };
  describe_migrate(app, *line);
  commands[&app] = checked(migrate);
  commands[describe_preflight(app, *line)] = checked(preflight);
}

}  // namespace gcr::cli

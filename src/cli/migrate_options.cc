#include "src/cli/migrate_options.h"

#include <fmt/format.h>

#include <map>

#include "src/base/version.h"
#include "src/cli/common_options.h"
#include "src/cli/exit_code.h"

namespace gcr::cli {
namespace {

constexpr const char* kFooter = R"(
cancel, continue, set, status, list, host and resolve: 0 on success, else 2 to 5.

Ctrl-C (or SIGTERM) cancels the migration unless it is committed, and waits for the report; a second
one quits at once. If the connection to SRC is lost, the migration goes on, and SRC is asked what
became of it.

The last line on standard output after a migration:
  migrated pid=<n> vram_bytes=<n> downtime_ms=<x> total_ms=<x> verified=yes|no
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

void describe_data(CLI::App& app, MigrateOptions& options) {
  app.add_option(
         "--transport", options.transport,
         "Transport of the data (default auto: RDMA if both hosts have it and both agents may send "
         "unencrypted data, else TCP)")
      ->option_text("auto|rdma|tcp")
      ->transform(CLI::CheckedTransformer(kTransports));
  app.add_flag("--plaintext", options.plaintext,
               "TCP without TLS, if the configuration of both agents allows it");
  app.add_option("--lanes", options.lanes, "Data connections; 0: the agents choose")
      ->check(CLI::Range(0, 32));
}

void describe_pre_copy(CLI::App& app, MigrateOptions& options) {
  app.add_option("--downtime-limit", options.downtime_limit_ms,
                 "Switch over once the rest can be sent within this many ms (default 300)")
      ->option_text("MS")
      ->check(CLI::Range(1, 3'600'000));
  app.add_option("--max-rounds", options.max_rounds,
                 "Switch over after this many rounds in any case (default 30)")
      ->option_text("N")
      ->check(CLI::Range(1, 1000));
  app.add_option(
         "--max-bandwidth", options.max_bandwidth_bytes,
         "Send at most this many bytes per second while the process runs: 800M, 2GiB (default: "
         "no limit)")
      ->option_text("RATE")
      ->transform(CLI::AsSizeValue(true));
  app.add_flag("--auto-converge", options.auto_converge,
               "Throttle the process if it changes GPU memory faster than it can be sent");
  app.add_flag("--strict", options.strict,
               "Fail, leaving the process where it is, rather than exceed the downtime limit");
  app.add_flag("--pause-before-switchover", options.pause_before_switchover,
               "Stay in pre-copy until `gcr-migrate continue SRC ID`");
  app.add_flag("--no-prefill", options.no_prefill,
               "Fill GPU memory at DST only after the switchover; it need not be free before");
}

void describe_images(CLI::App& app, MigrateOptions& options) {
  app.add_option(
         "--compression", options.compression,
         "Compression of the images of the process's ordinary memory (default auto: depends on the "
         "link)")
      ->option_text("auto|none|lz4|zstd")
      ->transform(CLI::CheckedTransformer(kCompressions));
  app.add_option("--image-mode", options.image_mode,
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
}

void describe_process(CLI::App& app, RawMigrate& raw) {
  app.add_option("SRC", raw.source,
                 "Where the process runs: host or host:port of its agent; or \"local\" (or "
                 "\"unix:/PATH\") to move a process of your own away from this host, without a "
                 "certificate");
  app.add_option(
      "DST", raw.destination,
      "Where to move it: host or host:port, as SRC sees it; names are looked up in hosts.toml "
      "on this side");
  app.add_option("PID", raw.pid, "The process, as the agent at SRC sees it");
}

}  // namespace

void describe_migrate(CLI::App& app, RawMigrate& raw) {
  app.name("gcr-migrate");
  app.description("Moves a running GPU process from the host SRC to the host DST while it runs.");
  app.footer("\nExit status:\n" + exit_code_table() + kFooter);
  app.set_version_flag("--version", fmt::format("gcr-migrate {} ({})", release(), source_commit()));
  describe_process(app, raw);
  describe_data(app, raw.options);
  describe_pre_copy(app, raw.options);
  describe_images(app, raw.options);
  describe_output(app, raw.options);
  describe_certificates(app, raw.options.tls);
}

CLI::App* describe_preflight(CLI::App& app, RawMigrate& raw) {
  CLI::App* preflight = app.add_subcommand(
      "preflight", "gcr-migrate preflight SRC DST PID: what prevents a migration");
  preflight->footer(kPreflightFooter);
  describe_process(*preflight, raw);
  describe_data(*preflight, raw.options);
  preflight->add_flag("--no-prefill", raw.options.no_prefill, "As for a migration");
  preflight->add_flag("--json", raw.options.json, "Print one JSON object and nothing else");
  describe_certificates(*preflight, raw.options.tls);
  return preflight;
}

Result<MigrateOptions> check(const RawMigrate& raw) {
  if (raw.source.empty() || raw.destination.empty() || raw.pid.empty()) {
    return Error(Code::kInvalidArgument, "SRC, DST and PID are needed: gcr-migrate SRC DST PID");
  }
  MigrateOptions options = raw.options;
  GCR_ASSIGN(options.source, find_agent(raw.source, options.tls));
  GCR_ASSIGN(options.destination, find_destination(raw.destination));
  GCR_ASSIGN(options.pid, parse_pid(raw.pid));
  options.tls = with_defaults(options.tls);
  return options;
}

}  // namespace gcr::cli

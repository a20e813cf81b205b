#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "src/base/version.h"
#include "src/cli/command.h"
#include "src/cli/request_options.h"

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

cancel, continue, set, status, list, host and resolve: 0 on success, else 2 to 5. The --help of
checkpoint, restore, checkpoints, verify and prune says what these mean there.
suspend, resume and swap: as for a migration; after 1 and 7 the process is as it was before.

Ctrl-C (or SIGTERM) cancels the migration unless it is committed, and waits for the report; a second
one quits at once. If the connection to SRC is lost, the migration continues, and SRC is queried for
the outcome.

The last line on standard output after a migration:
  migrated pid=<n> vram_bytes=<n> downtime_ms=<x> total_ms=<x> verified=yes|no processes=<n>
with the process's PID at DST; if the report was lost, "migrated pid=<n>" or "migrated pid=unknown".
Errors go to standard error, one line.)";

constexpr const char* kPreflightFooter = R"(
Nothing is changed and nothing is reserved. All findings are reported together, blockers first, each
with a stable identifier, the reason and the remedy.

Exit status: 0 if the process can be moved, warnings or not; 3 if there are blockers; else 2, 4 or 5.)";

const std::map<std::string, proto::ImageMode> kImageModes{{"auto", proto::IMAGE_MODE_AUTO},
                                                          {"stream", proto::IMAGE_MODE_STREAM},
                                                          {"rounds", proto::IMAGE_MODE_ROUNDS}};

const std::map<std::string, proto::Transport> kTransports{{"auto", proto::TRANSPORT_AUTO},
                                                          {"rdma", proto::TRANSPORT_RDMA},
                                                          {"tcp", proto::TRANSPORT_TCP}};

/// The command line of migrate and preflight; CLI11 cannot check the texts.
struct MigrateLine {
  std::string source;
  std::string destination;
  std::string pid;
  std::string checkpoints;  ///< a directory for preflight, in place of the destination
  control::TlsFiles tls;
  Order order;

  MigrateRequest& request() { return *order.request.mutable_migrate_request(); }
};

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

void describe_tcp_and_slow(CLI::App& app, MigrateRequest& request) {
  describe_concessions(app, request);
  describe_tcp(app, request, true,
               "TCP connections with one end outside of the job: refuse the migration (default); "
               "close them, so that the program sees at DST that they were reset; or keep them, "
               "with the addresses of the job's container");
}

void describe_device_map(CLI::App& app, MigrateRequest& request) {
  describe_gpus(app, *request.mutable_device_map(),
                "Which GPU of DST takes the place of which GPU of SRC, by UUID (default, and for "
                "those that are not named: the agents choose)");
}

void describe_slurm(CLI::App& app, MigrateRequest& request) {
  add_option(app, "--slurm-job", request, &MigrateRequest::set_slurm_job,
             "A Slurm job that runs at DST: it owns the processes from the commit on")
      ->option_text("JOBID")
      ->check(CLI::Range(1U, 0xfffffff0U));
}

void describe_receiver(CLI::App& app, MigrateRequest& request, bool or_new) {
  describe_container(
      app, [&request]() -> auto& { return *request.mutable_container(); },
      "A container that waits at DST for a job from a container: the PID of its init, as the agent "
      "at DST sees it, and the key that it waits with",
      or_new);
  describe_max_layer(app, request);
}

void describe_images(CLI::App& app, MigrateRequest& request) {
  describe_compression(app, request,
                       "Compression of the images of the process's ordinary memory (default auto: "
                       "depends on the link)");
  add_option(app, "--image-mode", request, &MigrateRequest::set_image_mode,
             "Images in one stream at the switchover, or in rounds before it (default auto)")
      ->option_text("auto|stream|rounds")
      ->transform(CLI::CheckedTransformer(kImageModes));
}

void describe_on_commit(CLI::App& app, Order& order) {
  app.add_option("--on-commit", order.on_commit,
                 "A shell command to run here once the process runs at DST, with GCR_SRC, GCR_DST "
                 "(hosts), GCR_PID (at DST) and GCR_MIGRATION in its environment")
      ->option_text("COMMAND")
      ->excludes("--detach");
}

void describe_process(CLI::App& app, MigrateLine& line) {
  app.add_option("SRC", line.source,
                 "Where the process runs: host or host:port of its agent; or \"local\" (or "
                 "\"unix:/PATH\") to move your own process away from this host, without a "
                 "certificate");
  app.add_option(
      "DST", line.destination,
      "Where to move it: host or host:port, as SRC sees it; names are looked up in hosts.toml "
      "on this side");
  app.add_option("PID", line.pid, "The process, as the agent at SRC sees it");
}

/// `gcr-migrate SRC DST PID`, on the main command.
void describe_migrate(CLI::App& app, MigrateLine& line) {
  app.name("gcr-migrate");
  app.description("Moves a running GPU process from the host SRC to the host DST while it runs.");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("gcr-migrate {} ({})", release(), source_commit()));
  describe_process(app, line);
  describe_start_time(app, line.request());
  describe_data(app, line.request());
  describe_pre_copy(app, line.request());
  add_flag(app, "--no-prefill", line.request(), &MigrateRequest::set_no_prefill,
           "Fill GPU memory at DST only after the switchover; it need not be free before");
  describe_images(app, line.request());
  describe_tcp_and_slow(app, line.request());
  describe_device_map(app, line.request());
  describe_slurm(app, line.request());
  describe_receiver(app, line.request(), false);
  describe_output(app, line.order);
  describe_on_commit(app, line.order);
  describe_certificates(app, line.tls);
}

CLI::App* describe_preflight(CLI::App& app, MigrateLine& line) {
  CLI::App* preflight = app.add_subcommand("preflight",
                                           "gcr-migrate preflight SRC DST PID, or --checkpoint DIR "
                                           "SRC PID: what prevents a migration, or "
                                           "a checkpoint");
  preflight->footer(kPreflightFooter);
  describe_process(*preflight, line);
  preflight
      ->add_option(
          "--checkpoint", line.checkpoints,
          "Report what prevents a checkpoint in this directory of SRC; there is no DST then")
      ->option_text("DIR");
  describe_data(*preflight, line.request());
  add_flag(*preflight, "--no-prefill", line.request(), &MigrateRequest::set_no_prefill,
           "As for a migration");
  describe_tcp_and_slow(*preflight, line.request());
  describe_downtime_limit(*preflight, line.request());
  describe_device_map(*preflight, line.request());
  describe_slurm(*preflight, line.request());
  describe_receiver(*preflight, line.request(), true);
  preflight->add_flag("--json", line.order.json, "Print one JSON object and nothing else");
  describe_certificates(*preflight, line.tls);
  return preflight;
}

/// Completes a command line with --checkpoint, which has two words: SRC and PID.
Result<MigrateLine> without_destination(MigrateLine line) {
  if (line.checkpoints.empty()) return line;
  if (!line.pid.empty()) {
    return Error(Code::kInvalidArgument, "with --checkpoint there is no DST: preflight SRC PID");
  }
  GCR_TRY(check_checkpoints(line.checkpoints));
  line.pid = std::exchange(line.destination, "");
  line.request().mutable_checkpoint()->set_directory(line.checkpoints);
  return line;
}

/// Converts the command line to an order. kInvalidArgument says what is wrong.
Result<Order> order_of(const MigrateLine& given) {
  GCR_ASSIGN(MigrateLine line, without_destination(given));
  const bool checkpoint = !line.checkpoints.empty();
  if (line.source.empty() || line.pid.empty() || (line.destination.empty() && !checkpoint)) {
    return Error(Code::kInvalidArgument, "SRC, DST and PID are needed: gcr-migrate SRC DST PID");
  }
  GCR_ASSIGN(line.order.agent, find_agent(line.source, line.tls));
  GCR_ASSIGN(const int pid, parse_pid(line.pid));
  line.request().set_pid(pid);
  if (!checkpoint) {
    GCR_ASSIGN(line.order.destination, find_destination(line.destination));
    line.request().set_destination(line.order.destination.to_string());
  }
  return line.order;
}

}  // namespace

void add_migrate(CLI::App& app, Commands& commands) {
  const auto line = std::make_shared<MigrateLine>();
  set_defaults(line->request());
  const auto ordered = [line](ExitCode (*command)(const Order&)) {
    return [line, command] {
      const auto order = order_of(*line);
      return order ? command(*order) : wrong_usage(order.error().message());
    };
  };
  describe_migrate(app, *line);
  commands[&app] = ordered(carry_out);
  commands[describe_preflight(app, *line)] = ordered(preflight);
}

}  // namespace gcr::cli

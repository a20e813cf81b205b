#include <fmt/format.h>

#include <map>
#include <memory>

#include "src/cli/command.h"
#include "src/cli/request_options.h"
#include "store/directory.h"

namespace gcr::cli {
namespace {

using proto::CheckpointOrder;
using proto::LoadRequest;
using proto::MigrateRequest;

constexpr const char* kCheckpointFooter = R"(
GPU memory is copied in rounds while the process runs; then it is stopped for the rest, as at a
migration's switchover, and continues where it is. Data of earlier checkpoints in DIR is not stored
again. DIR is a directory of HOST; it is created if it is missing.

With --every the command keeps running and takes a checkpoint each DURATION, counted from the
beginning of the one before. A late one is taken at once; missed ones are skipped. All are of the
process that had the PID at the first one, never of a later process with that PID. A checkpoint that
fails is retried at the time of the next one. The command ends with the last checkpoint's exit
status: when the process has ended (9), on Ctrl-C, which cancels a running checkpoint (7), after a
failure before the first success, and after three failures in a row.

Exit status as in `gcr-migrate --help`: 0 the checkpoint is complete; after 1 and 7 the process
runs on and there is no new checkpoint; 8 the agent still has to complete it; 9 the process
ended before that.

The last line on standard output after a checkpoint:
  checkpointed name=<name> vram_bytes=<n> standstill_ms=<x> total_ms=<x> stored_bytes=<n>
  shared_bytes=<n> processes=<n>
on one line; if the report was lost, "checkpointed name=unknown".)";

constexpr const char* kRestoreFooter = R"(
The checkpoint is kept, unless --once is given. DIR is a directory of HOST. HOST need not be the
host on which the checkpoint was taken, if the process finds the same files there as after a
migration.

Exit status as in `gcr-migrate --help`: 0 the process runs; after 1 and 7 nothing was restored.

The last line on standard output after a restore:
  restored pid=<n> vram_bytes=<n> total_ms=<x> verified=yes|no processes=<n>
with the process's PID at HOST; if the report was lost, "restored pid=<n>" or "restored pid=unknown".)";

const std::map<std::string, std::uint64_t> kDurations{
    {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};

/// The command line of checkpoint and restore; CLI11 cannot check the texts.
struct CheckpointLine {
  std::string host;
  std::string pid;  ///< of checkpoint
  std::string directory;
  std::string name;            ///< empty: none was given
  std::uint64_t every_ms = 0;  ///< 0: one checkpoint
  control::TlsFiles tls;
  Order order;

  MigrateRequest& request() { return *order.request.mutable_migrate_request(); }
  CheckpointOrder& checkpoint() { return *request().mutable_checkpoint(); }
  LoadRequest& load() { return *order.request.mutable_load_request(); }
};

void describe_host(CLI::App& app, CheckpointLine& line) {
  app.add_option("HOST", line.host,
                 "host or host:port of the agent, or a name of hosts.toml; or \"local\" (or "
                 "\"unix:/PATH\") for this host's, without a certificate, for your own processes")
      ->required();
}

void describe_directory(CLI::App& app, CheckpointLine& line) {
  app.add_option("DIR", line.directory, "The directory of checkpoints at HOST: an absolute path")
      ->required();
}

void describe_storing(CLI::App& app, CheckpointLine& line) {
  app.add_option("--name", line.name, "The checkpoint's name (default: the time and the PID)")
      ->option_text("NAME");
  add_flag(app, "--stop", line.checkpoint(), &CheckpointOrder::set_stop,
           "End the process once the checkpoint is complete, instead of continuing it");
  app.add_option("--every", line.every_ms,
                 "Take one each DURATION until the process ends: 30s, 10m, 2h")
      ->option_text("DURATION")
      ->transform(CLI::AsNumberWithUnit(kDurations, CLI::AsNumberWithUnit::UNIT_REQUIRED))
      ->check(CLI::PositiveNumber)
      ->excludes("--name")
      ->excludes("--stop");
  add_option(
      app, "--keep", line.checkpoint(), &CheckpointOrder::set_keep,
      "Keep only the newest N checkpoints of this process in DIR, including this one (default: "
      "all)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000));
}

CLI::App* describe_checkpoint(CLI::App& app, CheckpointLine& line) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint",
                                            "gcr-migrate checkpoint HOST PID DIR: take a "
                                            "checkpoint of a process and all its descendants");
  checkpoint->footer(kCheckpointFooter);
  describe_host(*checkpoint, line);
  checkpoint->add_option("PID", line.pid, "The process, as the agent at HOST sees it")->required();
  describe_start_time(*checkpoint, line.request());
  describe_directory(*checkpoint, line);
  describe_storing(*checkpoint, line);
  describe_pre_copy(*checkpoint, line.request());
  describe_compression(*checkpoint, line.request(),
                       "Compression of what is stored (default auto: the agent chooses)");
  describe_max_layer(*checkpoint, line.request());
  describe_concessions(*checkpoint, line.request());
  describe_tcp(
      *checkpoint, line.request(), false,
      "TCP connections with one end outside of the job: refuse the checkpoint (default), or "
      "close them where it is restored; here they stay open");
  describe_output(*checkpoint, line.order);
  for (const char* option : {"--detach", "--trace", "--pause-before-switchover"}) {
    checkpoint->get_option("--every")->excludes(option);
  }
  describe_certificates(*checkpoint, line.tls);
  return checkpoint;
}

CLI::App* describe_restore(CLI::App& app, CheckpointLine& line) {
  CLI::App* restore = app.add_subcommand(
      "restore", "gcr-migrate restore HOST DIR [NAME]: restore a checkpoint at HOST");
  restore->footer(kRestoreFooter);
  describe_host(*restore, line);
  describe_directory(*restore, line);
  restore->add_option("NAME", line.name, "Which checkpoint (default: the newest)");
  add_flag(*restore, "--copy", line.load(), &LoadRequest::set_copy,
           "Restore although the original may still run: both then use the same files and ports");
  add_flag(*restore, "--once", line.load(), &LoadRequest::set_once,
           "Lock the checkpoint: no other restore can use it; it is removed once the process runs, "
           "and unlocked if the restore fails");
  add_flag(*restore, "--no-prefill", line.load(), &LoadRequest::set_no_prefill,
           "Fill GPU memory only once the process is restored; it need not be free before");
  describe_container(
      *restore, [&line]() -> auto& { return *line.load().mutable_container(); },
      "A container that waits at HOST, for a checkpoint of a job in a container: the PID of its "
      "init, as the agent at HOST sees it, and the key that it waits with");
  describe_gpus(*restore, *line.load().mutable_device_map(),
                "Which GPU of HOST takes the place of which GPU of the checkpoint, by UUID "
                "(default, and for those that are not named: the agent chooses)");
  describe_output(*restore, line.order);
  describe_certificates(*restore, line.tls);
  return restore;
}

/// Checks the arguments that both commands have; kInvalidArgument says what is wrong.
Status check_common(CheckpointLine& line) {
  GCR_TRY(check_checkpoints(line.directory));
  if (!line.name.empty() && !store::is_name(line.name)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("a checkpoint's name has 1 to 128 of A-Z a-z 0-9 . _ - and no dot at its "
                    "beginning: \"{}\" is not one",
                    control::printable(line.name)));
  }
  GCR_ASSIGN(line.order.agent, find_agent(line.host, line.tls));
  return {};
}

Status complete_checkpoint(CheckpointLine& line) {
  GCR_TRY(check_common(line));
  GCR_ASSIGN(const int pid, parse_pid(line.pid));
  line.request().set_pid(pid);
  line.checkpoint().set_directory(line.directory);
  line.checkpoint().set_name(line.name);
  return {};
}

ExitCode run_checkpoint(CheckpointLine& line) {
  if (const Status good = complete_checkpoint(line); !good) {
    return wrong_usage(good.error().message());
  }
  if (line.every_ms == 0) return carry_out(line.order);
  return take_checkpoints(line.order, std::chrono::milliseconds(line.every_ms));
}

ExitCode run_restore(CheckpointLine& line) {
  if (const Status good = check_common(line); !good) return wrong_usage(good.error().message());
  line.load().set_directory(line.directory);
  line.load().set_name(line.name);
  return carry_out(line.order);
}

}  // namespace

void add_checkpoint(CLI::App& app, Commands& commands) {
  const auto line = std::make_shared<CheckpointLine>();
  set_defaults(line->request());
  commands[describe_checkpoint(app, *line)] = [line] { return run_checkpoint(*line); };
}

void add_restore(CLI::App& app, Commands& commands) {
  const auto line = std::make_shared<CheckpointLine>();
  commands[describe_restore(app, *line)] = [line] { return run_restore(*line); };
}

}  // namespace gcr::cli

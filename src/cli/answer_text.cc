#include "src/cli/answer_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/cli/json.h"
#include "src/cli/progress_text.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;

/// Versions of the JSON; increase them when a field changes its meaning or is removed.
constexpr int kHostSchema = 1;
constexpr int kPreflightSchema = 1;

/// Returns the cell of a table: printable, and never empty.
std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

std::string or_dash(std::int64_t number) { return number > 0 ? std::to_string(number) : "-"; }

void append_row(std::string& text, const proto::MigrationStatus& status) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}  {:<11}  {:<9}  {:<10}  {:>7}  {:>9}  {:<20}  {:<20}  {}\n",
                 to_uuid(status.migration_id()).to_string(), printable(status.role()),
                 printable(status.state()), or_dash(status.phase()), or_dash(status.pid()),
                 or_dash(status.processes()), or_dash(status.peer()),
                 time_text(status.began_unix_ms()), or_dash(status.command()));
  if (status.has_progress() && status.progress().elapsed_ms() > 0) {
    fmt::format_to(out, "    {}\n", progress_line(status.progress()));
  }
  if (!status.message().empty()) {
    fmt::format_to(out, "    {}: {}\n", printable(status.code()), printable(status.message()));
  }
  if (status.operator_needed()) {
    text += "    an operator is needed: see gcr-migrate resolve --help\n";
  }
}

void set_migrations(Struct& object, const Migrations& migrations) {
  make_list(object, "migrations");
  for (const proto::MigrationStatus& status : migrations) {
    add_object(object, "migrations") = to_struct(status);
  }
}

/// Returns the id of the migration that a process or a job is in; empty if it is in none.
template <class Message>
std::string migration_of(const Message& message) {
  return message.migration_id().empty() ? "" : to_uuid(message.migration_id()).to_string();
}

template <class Message>
std::uint64_t vram_of(const Message& message) {
  std::uint64_t bytes = 0;
  for (const proto::GpuUse& use : message.gpus()) bytes += use.vram_bytes();
  return bytes;
}

void append_gpus(std::string& text, const proto::HostReply& host) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<40}  {:>11}  {:>11}  {}\n", "gpu", "free", "of", "model");
  for (const proto::Gpu& gpu : host.host().gpus()) {
    fmt::format_to(out, "{}  {:>11}  {:>11}  {}{}\n", gpu_name(to_uuid(gpu.uuid())),
                   format_bytes(gpu.free_bytes()), format_bytes(gpu.total_bytes()),
                   or_dash(gpu.name()), gpu.allowed() ? "" : " (not for arriving processes)");
  }
}

/// Appends the row of a job or a process; `processes` is the number of a job's processes.
template <class Message>
void append_user(std::string& text, const Message& one, const std::string& processes,
                 const char* indent) {
  fmt::format_to(std::back_inserter(text),
                 "{:>7}  {:<12}  {:>9}  {:>4}  {:>11}  {:>11}  {:<36}  {}{}\n", one.pid(),
                 one.user().empty() ? std::to_string(one.uid()) : printable(one.user()), processes,
                 or_dash(one.gpus_size()), one.gpus().empty() ? "-" : format_bytes(vram_of(one)),
                 format_bytes(one.resident_bytes()), or_dash(migration_of(one)), indent,
                 or_dash(one.command()));
}

/// Appends each job by its root, and below it its members that use GPUs.
void append_jobs(std::string& text, const proto::HostReply& host) {
  if (host.jobs().empty()) {
    text += "\nno jobs that can be moved\n";
    return;
  }
  fmt::format_to(std::back_inserter(text),
                 "\n{:>7}  {:<12}  {:>9}  {:>4}  {:>11}  {:>11}  {:<36}  {}\n", "job", "user",
                 "processes", "gpus", "vram", "memory", "migration", "command");
  for (const proto::HostJob& job : host.jobs()) {
    append_user(text, job, std::to_string(job.processes()), "");
    for (const proto::GpuProcess& process : host.processes()) {
      if (process.job() == job.pid() && job.processes() > 1) append_user(text, process, "", "  ");
    }
  }
}

/// Sets the VRAM of a process or a job on each GPU.
void set_uses(Struct& user, const google::protobuf::RepeatedPtrField<proto::GpuUse>& uses) {
  make_list(user, "gpus");
  for (const proto::GpuUse& use : uses) {
    Struct& entry = add_object(user, "gpus");
    set(entry, "uuid", gpu_name(to_uuid(use.uuid())));
    set_fields(entry, use, {"vram_bytes"});
  }
}

/// Sets the GPUs with their `uuid` and the fields `names`.
void set_gpus(Struct& host, const google::protobuf::RepeatedPtrField<proto::Gpu>& gpus,
              std::initializer_list<const char*> names) {
  make_list(host, "gpus");
  for (const proto::Gpu& gpu : gpus) {
    Struct& entry = add_object(host, "gpus");
    set(entry, "uuid", gpu_name(to_uuid(gpu.uuid())));
    set_fields(entry, gpu, names);
  }
}

const char* severity_name(const proto::Finding& finding) {
  return finding.severity() == proto::Finding::WARNING ? "warning" : "blocker";
}

std::ptrdiff_t blockers_of(const proto::CheckReply& reply) {
  return std::ranges::count_if(reply.findings(), [](const proto::Finding& finding) {
    return finding.severity() != proto::Finding::WARNING;
  });
}

void set_host(Struct& host, const proto::HostFacts& facts) {
  set_fields(host, facts,
             {"software", "kernel", "cpu_model", "driver_version", "driver_release", "criu_version",
              "memory_available_bytes", "hugepages_free_bytes"});
  set_gpus(host, facts.gpus(), {"name", "total_bytes", "allowed"});
}

}  // namespace

std::string status_table(const Migrations& migrations) {
  if (migrations.empty()) return "no migrations\n";
  std::string text =
      fmt::format("{:<36}  {:<11}  {:<9}  {:<10}  {:>7}  {:>9}  {:<20}  {:<20}  {}\n", "migration",
                  "role", "state", "phase", "pid", "processes", "other agent", "began", "command");
  for (const proto::MigrationStatus& status : migrations) append_row(text, status);
  return text;
}

std::vector<TerminalBlock::Line> status_lines(const Migrations& migrations, std::size_t columns) {
  std::vector<TerminalBlock::Line> lines;
  const std::string table = status_table(migrations);
  for (std::string_view rest = table; !rest.empty();) {
    const auto end = rest.find('\n');
    const std::string_view line = rest.substr(0, std::min(end, columns - 1));
    lines.push_back({std::string(line), line.size()});
    rest.remove_prefix(end + 1);
  }
  return lines;
}

std::string status_json(const Migrations& migrations) {
  Struct object;
  set_migrations(object, migrations);
  return to_json(object) + "\n";
}

std::string resolve_text(const proto::ResolveReply& reply) {
  Migrations migrations;
  *migrations.Add() = reply.status();
  return fmt::format("{}\n{}", printable(reply.text()), status_table(migrations));
}

std::string resolve_json(const proto::ResolveReply& reply) {
  Struct object;
  set_fields(object, reply, {"text"});
  set_object(object, "status") = to_struct(reply.status());
  return to_json(object) + "\n";
}

std::string host_text(const proto::HostReply& host) {
  std::string text = fmt::format(
      "load {:.2f} per core, {} of memory available, at most {} "
      "migrations at a time each way\n\n",
      host.load(), format_bytes(host.host().memory_available_bytes()), host.max_migrations());
  append_gpus(text, host);
  append_jobs(text, host);
  if (host.migrations().empty()) return text;
  return text + "\n" + status_table(host.migrations());
}

std::string host_json(const proto::HostReply& host) {
  Struct object;
  set(object, "schema", kHostSchema);
  set_fields(
      object, host.host(),
      {"kernel", "driver_version", "memory_available_bytes", "hugepages_free_bytes", "slurm_node"});
  set_fields(object, host, {"load", "max_migrations"});
  set_gpus(object, host.host().gpus(),
           {"name", "total_bytes", "free_bytes", "allowed", "device_file"});
  make_list(object, "processes");
  for (const proto::GpuProcess& process : host.processes()) {
    Struct& entry = add_object(object, "processes");
    set_fields(entry, process,
               {"pid", "start_time", "command", "uid", "user", "resident_bytes", "job"});
    set(entry, "migration_id", migration_of(process));
    set_uses(entry, process.gpus());
  }
  make_list(object, "jobs");
  for (const proto::HostJob& job : host.jobs()) {
    Struct& entry = add_object(object, "jobs");
    set_fields(entry, job,
               {"pid", "start_time", "command", "uid", "user", "processes", "gpu_processes",
                "resident_bytes", "slurm_job", "slurm_step", "slurm_parent", "container_init"});
    set(entry, "migration_id", migration_of(job));
    set_uses(entry, job.gpus());
  }
  set_migrations(object, host.migrations());
  return to_json(object) + "\n";
}

bool is_ready(const proto::CheckReply& reply) { return blockers_of(reply) == 0; }

std::string preflight_text(const proto::CheckReply& reply) {
  std::string text;
  for (const proto::Finding& finding : reply.findings()) {
    text += fmt::format("{} {} at the {}\n  found   {}\n  why     {}\n  remedy  {}\n\n",
                        severity_name(finding), printable(finding.id()), printable(finding.host()),
                        printable(finding.found()), printable(finding.why()),
                        printable(finding.remedy()));
  }
  const auto blockers = blockers_of(reply);
  if (blockers == 0) return text + "ready\n";
  return text + fmt::format("refused: {} blocker{}\n", blockers, blockers == 1 ? "" : "s");
}

std::string preflight_json(const proto::CheckReply& reply) {
  Struct object;
  set(object, "schema", kPreflightSchema);
  set_bool(object, "ready", is_ready(reply));
  make_list(object, "findings");
  for (const proto::Finding& finding : reply.findings()) {
    Struct& entry = add_object(object, "findings");
    set_fields(entry, finding, {"id", "host", "found", "why", "remedy"});
    set(entry, "severity", severity_name(finding));
  }
  Struct& process = set_object(object, "process");
  set(process, "processes", reply.members_size());
  set_fields(process, reply.members().empty() ? proto::ProcessFacts() : reply.members(0),
             {"command", "uid", "user", "threads", "resident_bytes", "under_preload"});
  set_fields(process, reply, {"vram_bytes"});
  set_uses(process, reply.gpus());
  Struct& hosts = set_object(object, "hosts");
  set_host(set_object(hosts, "source"), reply.source());
  set_host(set_object(hosts, "destination"), reply.destination());
  return to_json(object) + "\n";
}

}  // namespace gcr::cli

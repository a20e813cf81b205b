#include "src/cli/host_text.h"

#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>

#include <iterator>
#include <vector>

#include "src/base/units.h"
#include "src/cli/agent_call.h"
#include "src/cli/status_text.h"
#include "src/control/control_channel.h"

namespace gcr::cli {
namespace {

using control::printable;
using google::protobuf::ListValue;
using google::protobuf::Struct;

constexpr int kHostSchema = 1;

void set(Struct& object, const char* key, const std::string& text) {
  (*object.mutable_fields())[key].set_string_value(printable(text));
}

void set(Struct& object, const char* key, double number) {
  (*object.mutable_fields())[key].set_number_value(number);
}

void set(Struct& object, const char* key, bool yes) {
  (*object.mutable_fields())[key].set_bool_value(yes);
}

/// Exact up to 2^53: 8 PiB.
void set(Struct& object, const char* key, std::uint64_t number) {
  set(object, key, static_cast<double>(number));
}

Struct& add(Struct& object, const char* key) {
  ListValue& list = *(*object.mutable_fields())[key].mutable_list_value();
  return *list.add_values()->mutable_struct_value();
}

void make_list(Struct& object, const char* key) {
  (*object.mutable_fields())[key].mutable_list_value();
}

std::uint64_t vram_of(const proto::GpuProcess& process) {
  std::uint64_t bytes = 0;
  for (const proto::GpuUse& use : process.gpus()) bytes += use.vram_bytes();
  return bytes;
}

void append_gpus(std::string& text, const proto::HostReply& host) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<40}  {:>11}  {:>11}  {}\n", "gpu", "free", "of", "model");
  for (const proto::Gpu& gpu : host.host().gpus()) {
    fmt::format_to(out, "{}  {:>11}  {:>11}  {}{}\n", gpu_name(gpu.uuid()),
                   format_bytes(gpu.free_bytes()), format_bytes(gpu.total_bytes()),
                   or_dash(gpu.name()), gpu.allowed() ? "" : " (not for arriving processes)");
  }
}

void append_processes(std::string& text, const proto::HostReply& host) {
  if (host.processes().empty()) {
    text += "\nno processes that can be moved\n";
    return;
  }
  auto out = std::back_inserter(text);
  fmt::format_to(out, "\n{:>7}  {:<12}  {:>11}  {:>11}  {:<36}  {}\n", "pid", "user", "vram",
                 "memory", "migration", "command");
  for (const proto::GpuProcess& process : host.processes()) {
    const bool moves = !process.migration_id().empty();
    fmt::format_to(out, "{:>7}  {:<12}  {:>11}  {:>11}  {:<36}  {}\n", process.pid(),
                   process.user().empty() ? std::to_string(process.uid()) : or_dash(process.user()),
                   process.gpus().empty() ? "-" : format_bytes(vram_of(process)),
                   format_bytes(process.resident_bytes()),
                   moves ? to_uuid(process.migration_id()).to_string() : "-",
                   or_dash(process.command()));
  }
}

void add_gpu(Struct& object, const proto::Gpu& gpu) {
  set(object, "uuid", gpu_name(gpu.uuid()));
  set(object, "name", gpu.name());
  set(object, "total_bytes", gpu.total_bytes());
  set(object, "free_bytes", gpu.free_bytes());
  set(object, "allowed", gpu.allowed());
}

void add_process(Struct& object, const proto::GpuProcess& process) {
  set(object, "pid", static_cast<double>(process.pid()));
  set(object, "start_time", process.start_time());
  set(object, "command", process.command());
  set(object, "uid", static_cast<double>(process.uid()));
  set(object, "user", process.user());
  set(object, "resident_bytes", process.resident_bytes());
  const bool moves = !process.migration_id().empty();
  set(object, "migration_id", moves ? to_uuid(process.migration_id()).to_string() : "");
  make_list(object, "gpus");
  for (const proto::GpuUse& use : process.gpus()) {
    Struct& entry = add(object, "gpus");
    set(entry, "uuid", gpu_name(use.uuid()));
    set(entry, "vram_bytes", use.vram_bytes());
  }
}

}  // namespace

std::string gpu_name(const std::string& uuid) { return "GPU-" + to_uuid(uuid).to_string(); }

std::string host_table(const proto::HostReply& host) {
  std::string text = fmt::format(
      "load {:.2f} per core, {} of memory available, at most {} "
      "migrations at a time each way\n\n",
      host.load(), format_bytes(host.host().memory_available_bytes()), host.max_migrations());
  append_gpus(text, host);
  append_processes(text, host);
  if (host.migrations().empty()) return text;
  return text + "\n" + status_table({host.migrations().begin(), host.migrations().end()});
}

std::string host_json(const proto::HostReply& host) {
  Struct object;
  set(object, "schema", static_cast<double>(kHostSchema));
  set(object, "kernel", host.host().kernel());
  set(object, "driver_version", static_cast<double>(host.host().driver_version()));
  set(object, "memory_available_bytes", host.host().memory_available_bytes());
  set(object, "hugepages_free_bytes", host.host().hugepages_free_bytes());
  set(object, "load", host.load());
  set(object, "max_migrations", static_cast<double>(host.max_migrations()));
  for (const char* key : {"gpus", "processes", "migrations"}) make_list(object, key);
  for (const proto::Gpu& gpu : host.host().gpus()) add_gpu(add(object, "gpus"), gpu);
  for (const proto::GpuProcess& process : host.processes()) {
    add_process(add(object, "processes"), process);
  }
  for (const proto::MigrationStatus& status : host.migrations()) {
    add(object, "migrations") = status_struct(status);
  }
  return to_json(object);
}

}  // namespace gcr::cli

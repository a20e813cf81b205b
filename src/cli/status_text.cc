#include "src/cli/status_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "src/cli/agent_call.h"
#include "src/cli/progress_text.h"
#include "src/control/control_channel.h"

namespace gcr::cli {
namespace {

using control::printable;
using google::protobuf::Struct;
namespace util = google::protobuf::util;

std::string time_text(std::int64_t unix_ms) {
  if (unix_ms <= 0) return "-";
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

void append_row(std::string& text, const proto::MigrationStatus& status) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}  {:<11}  {:<9}  {:<10}  {:>7}  {:<20}  {:<20}  {}\n",
                 to_uuid(status.migration_id()).to_string(), printable(status.role()),
                 printable(status.state()), or_dash(status.phase()),
                 status.pid() > 0 ? std::to_string(status.pid()) : "-", or_dash(status.peer()),
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

}  // namespace

std::string or_dash(const std::string& text) { return text.empty() ? "-" : printable(text); }

std::string status_table(const std::vector<proto::MigrationStatus>& migrations) {
  if (migrations.empty()) return "no migrations\n";
  std::string text =
      fmt::format("{:<36}  {:<11}  {:<9}  {:<10}  {:>7}  {:<20}  {:<20}  {}\n", "migration", "role",
                  "state", "phase", "pid", "other agent", "began", "command");
  for (const proto::MigrationStatus& status : migrations) append_row(text, status);
  return text;
}

std::vector<TerminalBlock::Line> status_lines(const std::vector<proto::MigrationStatus>& migrations,
                                              std::size_t columns) {
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

Struct status_struct(const proto::MigrationStatus& status) {
  util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  Struct object;
  const bool converted = util::MessageToJsonString(status, &text, options).ok() &&
                         util::JsonStringToMessage(text, &object).ok();
  if (!converted) object.Clear();
  (*object.mutable_fields())["migration_id"].set_string_value(
      to_uuid(status.migration_id()).to_string());
  return object;
}

std::string status_json(const std::vector<proto::MigrationStatus>& migrations) {
  Struct object;
  auto& list = *(*object.mutable_fields())["migrations"].mutable_list_value();
  for (const proto::MigrationStatus& status : migrations) {
    *list.add_values()->mutable_struct_value() = status_struct(status);
  }
  return to_json(object);
}

std::string to_json(const Struct& object) {
  std::string text;
  if (!util::MessageToJsonString(object, &text).ok()) return "{}";
  return text;
}

}  // namespace gcr::cli

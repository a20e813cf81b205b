#include "src/cli/json_line.h"

#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <memory>

#include "src/cli/agent_call.h"

namespace gcr::cli {
namespace {

namespace util = google::protobuf::util;

constexpr const char* kIdField = "migration_id";

std::int64_t unix_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

/// The object's fields without its braces. The id, if it has one, is written by others: as people
/// write it, not as bytes.
std::string fields_of(const google::protobuf::Message& message) {
  const std::unique_ptr<google::protobuf::Message> copy(message.New());
  copy->CopyFrom(message);
  const auto* id = copy->GetDescriptor()->FindFieldByName(kIdField);
  if (id != nullptr) copy->GetReflection()->ClearField(copy.get(), id);
  util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!util::MessageToJsonString(*copy, &text, options).ok()) return "";
  text = text.substr(1, text.size() - 2);
  const std::string empty_id = fmt::format("\"{}\":\"\"", kIdField);
  if (!text.starts_with(empty_id)) return text;
  text.erase(0, empty_id.size());
  if (text.starts_with(',')) text.erase(0, 1);
  return text;
}

std::string line_of(std::string_view type, const Uuid& id, std::string_view more) {
  return fmt::format(R"({{"schema":{},"type":"{}","unix_ms":{},"{}":"{}"{}{}}})"
                     "\n",
                     kEventSchema, type, unix_ms(), kIdField, id == Uuid{} ? "" : id.to_string(),
                     more.empty() ? "" : ",", more);
}

}  // namespace

std::string json_line(std::string_view type, const Uuid& id,
                      const google::protobuf::Message& message) {
  return line_of(type, id, fields_of(message));
}

std::string json_report(const proto::MigrateReport& report, ExitCode exit_code) {
  return line_of(
      "report", to_uuid(report.migration_id()),
      fmt::format(R"("exit_status":{},{})", static_cast<int>(exit_code), fields_of(report)));
}

Result<proto::MigrateReport> report_of_json(const std::string& text) {
  const auto last = text.find_last_not_of(" \t\r\n");
  const std::string whole = text.substr(0, last == std::string::npos ? 0 : last + 1);
  const auto before = whole.find_last_of('\n');
  const std::string line = before == std::string::npos ? whole : whole.substr(before + 1);
  google::protobuf::Struct object;
  std::string rest;
  proto::MigrateReport report;
  util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!util::JsonStringToMessage(line, &object).ok() || !object.fields().contains("migrated")) {
    return Error(Code::kInvalidArgument, "its last line is not a report of gcr-migrate --json");
  }
  std::string id = object.fields().contains(kIdField) ? object.fields().at(kIdField).string_value()
                                                      : std::string();
  const auto uuid = Uuid::parse(id);
  if (uuid) object.mutable_fields()->erase(kIdField);
  if (!util::MessageToJsonString(object, &rest).ok() ||
      !util::JsonStringToMessage(rest, &report, options).ok()) {
    return Error(Code::kInvalidArgument, "its last line has fields that no report has");
  }
  if (uuid) report.set_migration_id(to_bytes(*uuid));
  return report;
}

}  // namespace gcr::cli

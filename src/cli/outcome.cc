#include "src/cli/outcome.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

namespace gcr::cli {
namespace {

using control::printable;

Code code_of(const proto::MigrateReport& report) {
  proto::Failure failure;
  failure.set_code(report.code());
  return control::from_failure(failure).code();
}

ExitCode untouched_exit_code(Code code) {
  switch (code) {
    case Code::kUnavailable:
      return ExitCode::kUnreachable;
    case Code::kPermissionDenied:
      return ExitCode::kNotAuthorised;
    case Code::kInvalidArgument:
    default:
      return ExitCode::kRefused;
  }
}

/// What the reader most wants to know after an error: whether the process still runs, and where.
std::string_view consequence(ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kFailed:
      return "; the process runs on at the source";
    case ExitCode::kUnknown:
      return "; the outcome is not known here: look at both agents' logs before starting anything";
    default:
      return "";
  }
}

}  // namespace

Outcome outcome_of(proto::MigrateReport report) {
  Outcome outcome;
  if (report.migrated()) {
    outcome.exit_code = ExitCode::kMigrated;
  } else if (report.committed()) {
    outcome.exit_code = ExitCode::kUnknown;
  } else if (report.source_touched()) {
    outcome.exit_code = ExitCode::kFailed;
  } else {
    outcome.exit_code = untouched_exit_code(code_of(report));
  }
  outcome.report = std::move(report);
  return outcome;
}

Outcome outcome_of(const Error& error, bool asked) {
  Outcome outcome;
  outcome.exit_code = asked ? ExitCode::kUnknown : untouched_exit_code(error.code());
  outcome.report.set_source_touched(asked);
  outcome.report.set_code(std::string(to_string(error.code())));
  outcome.report.set_message(error.message());
  return outcome;
}

std::string to_json(const proto::MigrateReport& report) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(report, &text, options);
  if (!status.ok())
    return fmt::format("{{\"code\": \"internal\", \"migrated\": {}}}", report.migrated());
  return text;
}

std::string error_line(const Outcome& outcome) {
  return printable(outcome.report.message()) + std::string(consequence(outcome.exit_code));
}

}  // namespace gcr::cli

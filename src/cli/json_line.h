// The lines of `gcr-migrate --json`: one JSON object each, of a schema that docs/events.md
// describes.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/cli/exit_code.h"

namespace gcr::cli {

/// Grows when a reader of the old lines would misunderstand the new ones, but not for new fields
/// and types.
inline constexpr int kEventSchema = 1;

/// {"schema": 1, "type": TYPE, "unix_ms": now, "migration_id": ID, and the message's own fields},
/// on one line with its end. 64-bit numbers are strings, as Protobuf's JSON mapping has them. An ID
/// of zeros is an empty string.
std::string json_line(std::string_view type, const Uuid& id,
                      const google::protobuf::Message& message);

/// The last line: the report, with "exit_status".
std::string json_report(const proto::MigrateReport& report, ExitCode exit_code);

/// The report in the last line of `text`, written by json_report() or by an earlier release.
/// kInvalidArgument if there is none.
Result<proto::MigrateReport> report_of_json(const std::string& text);

}  // namespace gcr::cli

// What an agent knows of migrations, for people and for scripts.
#pragma once

#include <google/protobuf/struct.pb.h>

#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {

/// For a table: printable, and never empty.
std::string or_dash(const std::string& text);

/// A table with a row for each migration, and notes below the row.
std::string status_table(const std::vector<proto::MigrationStatus>& migrations);

/// The same for a terminal with this many columns, as `status --watch` draws it.
std::vector<TerminalBlock::Line> status_lines(const std::vector<proto::MigrationStatus>& migrations,
                                              std::size_t columns);

/// One JSON object: {"migrations": [...]}. Every field is present; ids are UUIDs as text, 64-bit
/// numbers are strings, as in Protobuf's JSON mapping.
std::string status_json(const std::vector<proto::MigrationStatus>& migrations);

/// The same for one.
google::protobuf::Struct status_struct(const proto::MigrationStatus& status);

/// On one line.
std::string to_json(const google::protobuf::Struct& object);

}  // namespace gcr::cli

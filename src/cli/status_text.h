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

/// A table, one row each, with what is special below the row.
std::string status_table(const std::vector<proto::MigrationStatus>& migrations);

/// The same for a terminal of so many columns, as `status --watch` draws it.
std::vector<TerminalBlock::Line> status_lines(const std::vector<proto::MigrationStatus>& migrations,
                                              std::size_t columns);

/// One JSON object: {"migrations": [...]}. Every field is present; ids are written as people write
/// them, 64-bit numbers are strings, as Protobuf's JSON mapping has them.
std::string status_json(const std::vector<proto::MigrationStatus>& migrations);

/// The same for one.
google::protobuf::Struct status_struct(const proto::MigrationStatus& status);

/// On one line.
std::string to_json(const google::protobuf::Struct& object);

}  // namespace gcr::cli

// Replies of agents, as text for people and as one line of JSON for scripts.
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {

using Migrations = google::protobuf::RepeatedPtrField<proto::MigrationStatus>;

/// Returns a table with a row for each migration, and notes below the row.
std::string status_table(const Migrations& migrations);

/// Returns the lines of status_table() for a terminal with this many columns, for `status --watch`.
std::vector<TerminalBlock::Line> status_lines(const Migrations& migrations, std::size_t columns);

/// Returns {"migrations": [...]}. Every field is present; ids are UUIDs, 64-bit numbers are
/// strings.
std::string status_json(const Migrations& migrations);

/// Return what was done, and the migration's row.
std::string resolve_text(const proto::ResolveReply& reply);
std::string resolve_json(const proto::ResolveReply& reply);

/// Return tables of the GPUs, the jobs and processes, and the migrations if there are any.
/// docs/json.md describes the JSON.
std::string host_text(const proto::HostReply& host);
std::string host_json(const proto::HostReply& host);

/// Return a block of lines for each finding, and "ready" or "refused: N blockers".
/// docs/preflight.md describes the JSON.
std::string preflight_text(const proto::CheckReply& reply);
std::string preflight_json(const proto::CheckReply& reply);

/// Returns whether none of the findings is a blocker.
bool is_ready(const proto::CheckReply& reply);

}  // namespace gcr::cli

// What an agent can tell about a migration: from its journal, and from the worker that has it.
#pragma once

#include <asio/awaitable.hpp>
#include <string>
#include <vector>

#include "migrate-agent/journal/journal_files.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::agent {

/// From the 16 bytes that messages carry; kInvalidArgument otherwise.
Result<Uuid> parse_id(const std::string& bytes);

/// The entry of the migration's journal in this role, whether or not there is one.
journal::Entry journal_entry(const std::filesystem::path& state_dir, const Uuid& migration,
                             journal::Role role);

/// The protocol's name for a journal's state: "working", "restored", ... kDataLoss if it is
/// damaged.
Result<std::string> state_of(const journal::Entry& entry, const journal::Contents& contents);

/// What the journal alone tells. A journal that is damaged or cannot be read has the state
/// "damaged" or "unreadable", a reason, and needs an operator. Checks the process, if it is named.
proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents);

/// Adds what the migration's worker tells, if there is one and it answers soon.
asio::awaitable<void> add_worker(const std::filesystem::path& runtime_dir,
                                 const journal::Entry& entry, proto::MigrationStatus& status);

}  // namespace gcr::agent

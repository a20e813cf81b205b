// What an agent can tell about a migration: from its journal, and from the worker that is at it.
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

/// The protocol's name for where a journal stands: "working", "restored", ... kDataLoss if it
/// cannot be believed.
Result<std::string> state_of(const journal::Entry& entry, const journal::Contents& contents);

/// What the journal alone tells. One that is damaged or cannot be read has the state "damaged" or
/// "unreadable", says why, and needs an operator. Looks at the process, if it is named.
proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents);

/// Adds what the worker that is at the migration tells, if there is one and it answers soon.
asio::awaitable<void> add_worker(const std::filesystem::path& runtime_dir,
                                 const journal::Entry& entry, proto::MigrationStatus& status);

}  // namespace gcr::agent

// Journals as the coroutines of a worker read them, and what an agent tells about a migration: from
// its journal, and from the worker that is at it.
#pragma once

#include <asio/awaitable.hpp>

#include "migrate-agent/commit/states.h"
#include "migrate-agent/journal/journal_files.h"
#include "migrate-agent/worker/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::agent {

/// A journal of this host as it is now, and its state.
struct KnownJournal {
  journal::Entry entry;
  journal::Contents contents;
  commit::AnyState state;

  bool is(commit::AnyState which) const { return state == which; }
  const journal::Began& began() const { return contents.records.front().began(); }
  const journal::Record* last(journal::Record::BodyCase kind) const {
    return journal::last(contents.records, kind);
  }
};

/// For callers that act on it (journal::read_durable). kNotFound if there is none, kDataLoss if it
/// is damaged.
asio::awaitable<Result<KnownJournal>> read_journal(WorkerContext& context, Uuid migration,
                                                   journal::Role role);

/// Whether the peer may see and control this migration: by this host's journals its process belongs
/// to a user whose processes the peer may move. Success too if there is no journal.
/// kPermissionDenied.
asio::awaitable<Status> check_permission(WorkerContext& context, Uuid migration);

/// What the journal alone tells. One that is damaged or cannot be read has the state "damaged" or
/// "unreadable", says why, and needs an operator. Looks at the process, if it is named.
proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents);

/// Adds what the worker that is at the migration tells, if there is one and it answers soon.
asio::awaitable<void> add_worker(const std::filesystem::path& runtime_dir,
                                 const journal::Entry& entry, proto::MigrationStatus& status);

/// Pauses before the next poll of something without events: another process's journal.
asio::awaitable<void> pause_before_next_look(WorkerContext& context);

}  // namespace gcr::agent

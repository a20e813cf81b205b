// Journals as a worker reads them to answer a request, and what an agent tells about a migration:
// from its journal, and from the worker that is at it. All of it blocks, on a thread of the
// worker's pool.
#pragma once

#include <chrono>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/states.h"
#include "migrate-agent/worker/runtime/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::daemon {

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
Result<KnownJournal> read_journal(const worker::WorkerContext& context, const Uuid& migration,
                                  journal::Role role);

/// Whether the peer may see and control this migration: by this host's journals its process belongs
/// to a user whose processes the peer may move. Success too if there is no journal.
/// kPermissionDenied.
Status check_permission(const worker::WorkerContext& context, const Uuid& migration);

/// What the journal alone tells. One that is damaged or cannot be read has the state "damaged" or
/// "unreadable", says why, and needs an operator. Looks at the process, if it is named.
proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents);

/// Adds what the worker that is at the migration tells, if there is one and it answers soon.
void add_worker(const worker::WorkerContext& context, const journal::Entry& entry,
                proto::MigrationStatus& status);

/// As ask_worker(), of the worker that owns this journal.
Result<registry::WorkerReply> ask_owner(const worker::WorkerContext& context,
                                        const journal::Entry& entry,
                                        const registry::ToWorker& question,
                                        std::chrono::milliseconds timeout);

/// Pauses before the next poll of something without events: another process's journal.
void pause_before_next_look();

}  // namespace gcr::daemon

// Reads journals to answer a request: the state of a migration from its journal, and from the
// worker that runs it. All functions block, on a thread of the worker's pool.
#pragma once

#include <chrono>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/states.h"
#include "migrate-agent/worker/runtime/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::daemon {

/// A journal of this host, with its current records and state.
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

/// Reads a journal for a caller that acts on it (journal::read_durable). kNotFound if there is
/// none, kDataLoss if it is damaged.
Result<KnownJournal> read_journal(const worker::WorkerContext& context, const Uuid& migration,
                                  journal::Role role);

/// Checks that the peer may see and control this migration: that by this host's journals its
/// process belongs to a user whose processes the peer may move. Success also if there is no
/// journal. kPermissionDenied.
Status check_permission(const worker::WorkerContext& context, const Uuid& migration);

/// Returns the status from the journal alone, and whether its processes live. A damaged or
/// unreadable journal has the state "damaged" or "unreadable", with the reason, and needs an
/// operator.
proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents);

/// Adds the status from the worker that runs the migration, if there is one and it replies within
/// 500 ms.
void add_worker(const worker::WorkerContext& context, const journal::Entry& entry,
                proto::MigrationStatus& status);

/// Asks the worker that owns this journal, like ask_worker().
Result<registry::WorkerReply> ask_owner(const worker::WorkerContext& context,
                                        const journal::Entry& entry,
                                        const registry::ToWorker& question,
                                        std::chrono::milliseconds timeout);

/// Sleeps before the next poll of another process's journal, which has no events.
void pause_before_next_poll();

}  // namespace gcr::daemon

// How a worker's coroutines read journals.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>

#include "migrate-agent/daemon/migration_status.h"
#include "migrate-agent/worker/context.h"

namespace gcr::agent {

/// A journal of this host as it is now, and its state.
struct KnownJournal {
  journal::Entry entry;
  journal::Contents contents;
  std::string state;

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

/// Pauses before the next poll of something without events: another process's journal.
asio::awaitable<void> pause_before_next_look(WorkerContext& context);

}  // namespace gcr::agent

// Journals as the coroutines of a worker read them.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>

#include "migrate-agent/daemon/migration_status.h"
#include "migrate-agent/worker/context.h"

namespace gcr::agent {

/// A journal of this host as it is now, and where it stands.
struct KnownJournal {
  journal::Entry entry;
  journal::Contents contents;
  std::string state;

  const journal::Began& began() const { return contents.records.front().began(); }
  const journal::Record* last(journal::Record::BodyCase kind) const {
    return journal::last(contents.records, kind);
  }
};

/// For who acts on it (journal::read_durable). kNotFound if there is none, kDataLoss if it cannot
/// be believed.
asio::awaitable<Result<KnownJournal>> read_journal(WorkerContext& context, Uuid migration,
                                                   journal::Role role);

/// Whether the peer may see and control this migration: its process belongs to somebody whose
/// processes it may move, as this host's journals have it. Success too if there is none.
/// kPermissionDenied.
asio::awaitable<Status> check_permission(WorkerContext& context, Uuid migration);

/// Before something is looked at again that no event tells of: another process's journal.
asio::awaitable<void> pause_before_next_look(WorkerContext& context);

}  // namespace gcr::agent

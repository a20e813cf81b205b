// Sends requests to the worker that owns a migration on this host (worker_server.h is the other
// end), one per connection; on the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>
#include <filesystem>

#include "migrate-agent/commit/journal/journal.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::worker {

/// Address of the worker that owns this migration in this role; it stays valid when the worker
/// changes.
struct WorkerAddress {
  std::filesystem::path runtime_dir;
  Uuid migration;
  journal::Role role = journal::Began::ROLE_INVALID;

  /// Returns RUNTIME_DIR/workers/<uuid>-<role>.
  std::filesystem::path path() const;
};

/// Sends `question` and returns the worker's reply. kNotFound: no worker has the migration now.
/// kUnavailable: the worker ended without a reply, or left the request to its successor. kTimeout.
/// A refusal becomes the Error that it carries.
asio::awaitable<Result<registry::WorkerReply>> ask_worker(WorkerAddress worker,
                                                          registry::ToWorker question,
                                                          std::chrono::milliseconds timeout);

}  // namespace gcr::worker

// Asks the worker that owns a migration on this host (worker_server.h has its end). One question
// per connection; on the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>
#include <filesystem>

#include "migrate-agent/commit/journal/journal.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::worker {

/// The owner of this migration in this role, whichever process that is now.
struct WorkerAddress {
  std::filesystem::path runtime_dir;
  Uuid migration;
  journal::Role role = journal::Began::ROLE_INVALID;

  /// RUNTIME_DIR/workers/<uuid>-<role>.
  std::filesystem::path path() const;
};

/// Sends `question` and gives the worker's answer. kNotFound: no worker has the migration now.
/// kUnavailable: the worker ended without an answer, or left the question to its successor.
/// kTimeout. A refusal becomes the Error that it carries.
asio::awaitable<Result<registry::WorkerReply>> ask_worker(WorkerAddress worker,
                                                          registry::ToWorker question,
                                                          std::chrono::milliseconds timeout);

}  // namespace gcr::worker

// The entry points of a worker, one for each role in a migration. Before a role is called, the
// worker has accepted the control channel, read its first request and checked that the peer's
// certificate allows it. The role handles the rest and replies on the channel. When it returns, the
// worker process ends and releases all that it holds.
#pragma once

#include <asio/awaitable.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "migrate-agent/worker/config/config.h"
#include "migrate-agent/worker/runtime/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::migration {

/// Migrates a process away from this host (migrate-agent/migration/source). Sends Events and
/// finally one MigrateReport to the operator. Errors of the migration are in the report; an
/// exception that escapes is logged and sent as a Failure.
asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request);

/// Receives a process: answers all requests until the commit, an abort, or the loss of the source.
asio::awaitable<void> run_destination(worker::WorkerContext& context,
                                      proto::PreflightRequest request);

/// Restores a checkpoint on this host (migrate-agent/migration/restore): a migration whose source
/// is a store and whose destination is this agent. Replies as run_source() does.
asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request);

/// Suspends a job: takes it off its GPUs (migrate-agent/migration/suspend). Replies as run_source()
/// does. A suspended job needs no worker.
asio::awaitable<void> run_suspend(worker::WorkerContext& context,
                                  const proto::SuspendRequest& request);

/// Resumes a suspended job on this host. Replies as run_source() does.
asio::awaitable<void> run_resume(worker::WorkerContext& context,
                                 const proto::ResumeRequest& request);

/// Whether `pid` belongs to a suspended job that the requester may move. Blocks.
bool is_suspended(const worker::WorkerContext& context, pid_t pid);

/// The counterparts of run_source() and run_check() for a suspended job.
asio::awaitable<void> run_suspended_source(worker::WorkerContext& context,
                                           proto::MigrateRequest request);
Result<proto::Envelope> run_suspended_check(worker::WorkerContext& context,
                                            const proto::MigrateRequest& request);

/// Runs preflight only: gives a CheckReply with the findings of both sides. Touches and reserves
/// nothing, and writes no journal. kPermissionDenied if the peer may not move the process,
/// kInvalidArgument if the destination is not an address; everything else is a finding. Blocks;
/// call it on a thread of the pool.
Result<proto::Envelope> run_check(worker::WorkerContext& context,
                                  const proto::MigrateRequest& request);

/// Finishes the migration that `journal` records, after waiting for the journal's lock. After
/// success nothing is left to do for it. After a failure the daemon starts a recovery again, in a
/// new process, while the journal is unfinished.
asio::awaitable<Status> run_recovery(worker::RecoveryContext& context,
                                     std::filesystem::path journal);

/// The reasons, apart from the configuration, why no migration can succeed on this host now: the
/// driver does not load, CRIU does not run. Blocks; a broken driver may crash the process.
std::vector<std::string> host_problems(const worker::Config& config);

}  // namespace gcr::migration

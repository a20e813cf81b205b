// The roles of an agent in a migration. The worker has accepted the control channel, read its
// first request and checked that the peer's certificate allows it; the role does the rest and
// answers on the channel. When it returns, the worker ends and with it everything it holds.
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

/// Moves the process away (migrate-agent/migration/source): sends Events and, last, one
/// MigrateReport to the operator. Errors of the migration end up in the report; an exception that
/// leaves it is logged and sent as a Failure.
asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request);

/// Receives the process: answers `request`, then the source's further requests, until the commit or
/// an abort, or until the source is gone.
asio::awaitable<void> run_destination(worker::WorkerContext& context,
                                      proto::PreflightRequest request);

/// Brings a checkpoint to life on this host (migrate-agent/migration/restore): a migration whose
/// source is a store and whose destination is this agent, answered as run_source() answers.
asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request);

/// Takes the job off its GPUs (migrate-agent/migration/suspend), and answers as run_source(). After
/// success it is suspended: it needs no worker.
asio::awaitable<void> run_suspend(worker::WorkerContext& context,
                                  const proto::SuspendRequest& request);

/// Lets a suspended job run again, and answers likewise.
asio::awaitable<void> run_resume(worker::WorkerContext& context,
                                 const proto::ResumeRequest& request);

/// Whether the process is one of a suspended job, which the asker may move. Blocks.
bool is_suspended(const worker::WorkerContext& context, pid_t pid);

/// As run_source() and run_check(), for such a job.
asio::awaitable<void> run_suspended_source(worker::WorkerContext& context,
                                           proto::MigrateRequest request);
Result<proto::Envelope> run_suspended_check(worker::WorkerContext& context,
                                            const proto::MigrateRequest& request);

/// Preflight alone: a CheckReply with what both sides find. Nothing is touched or reserved, and no
/// journal is written. kPermissionDenied if the peer may not move the process, kInvalidArgument if
/// the destination is not an address; everything else is a finding. Blocks, on a thread of the
/// pool.
Result<proto::Envelope> run_check(worker::WorkerContext& context,
                                  const proto::MigrateRequest& request);

/// Finishes the migration of this journal, after waiting for the journal's lock. Success: nothing
/// is left to do, now or ever. After a failure it is started again, in a new process, while the
/// journal is unfinished.
asio::awaitable<Status> run_recovery(worker::RecoveryContext& context,
                                     std::filesystem::path journal);

/// Why no migration could succeed on this host now, apart from its configuration: the driver does
/// not load, CRIU does not run. Blocks; a broken driver may crash the process.
std::vector<std::string> host_problems(const worker::Config& config);

}  // namespace gcr::migration

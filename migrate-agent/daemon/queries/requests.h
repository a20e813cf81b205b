// The requests that any worker answers at once: from the journals of this host, or by asking the
// worker that owns the migration (worker_client.h). The worker has checked that the peer's
// certificate has the role for the request.
//
// Each gives the reply, or the Error of the Failure to send instead. All of them block, on a thread
// of the worker's pool. The migration that a request names is a parameter of its own.
#pragma once

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/worker/runtime/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::daemon {

using Reply = Result<proto::Envelope>;

/// From an agent: what the source's journal says. kPermissionDenied if the migration is with
/// another agent.
Reply answer_outcome(worker::WorkerContext& context, const Uuid& migration, bool of_vote);

/// From an agent: the migration is committed, its process here shall run. The reply confirms that
/// it runs, or ran. kNotFound: nothing is known of the migration; kRefused: this host has given its
/// copy up; kPermissionDenied: another agent began it; kTimeout: not yet, ask again.
Reply answer_commit(worker::WorkerContext& context, const Uuid& migration);

/// From an operator. kRefused once it is committed; kNotFound.
Reply answer_cancel(worker::WorkerContext& context, const Uuid& migration);

/// From an operator. kRefused if the migration does not pause, or has gone on already; kNotFound.
Reply answer_continue(worker::WorkerContext& context, const Uuid& migration);

/// From an operator. kInvalidArgument for values out of range; kRefused once the switchover has
/// begun; kNotFound.
Reply answer_adjust(worker::WorkerContext& context, const Uuid& migration,
                    const proto::AdjustRequest& request);

/// From an operator; the oldest first.
Reply answer_list(worker::WorkerContext& context, const proto::ListRequest& request);

/// From an operator. kNotFound if this agent has no journal of the migration.
Reply answer_status(worker::WorkerContext& context, const Uuid& migration);

/// From an operator or a local user: what this host has, which processes on it the asker may move,
/// and which of their migrations are under way. kUnsupported if it has no CUDA driver.
Reply answer_host(worker::WorkerContext& context);

/// Decides about a migration whose journal is damaged: writes the journal anew with the decision;
/// recovery begins when this worker ends. kInvalidArgument if neither the journal nor `request`
/// names the process.
Status resolve_damaged(worker::WorkerContext& context, const journal::Entry& entry,
                       const proto::ResolveRequest& request);

/// From an operator: passes the decision to the migration's owner, unless the other agent can be
/// reached and can decide. kInvalidArgument, kRefused, kNotFound: nothing was decided. kTimeout:
/// the owner did not accept the decision in time.
Reply answer_resolve(worker::WorkerContext& context, const Uuid& migration,
                     const proto::ResolveRequest& request);

}  // namespace gcr::daemon

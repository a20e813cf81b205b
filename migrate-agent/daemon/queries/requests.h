// Requests that any worker answers at once, from the journals of this host or by asking the worker
// that owns the migration (worker_client.h). The caller has checked that the peer's certificate has
// the role for the request.
//
// Each function returns the reply, or the Error to send as a Failure. All of them block, on a
// thread of the worker's pool. The id of the migration in a request is a separate parameter.
#pragma once

#include "migrate-agent/worker/runtime/context.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::daemon {

using Reply = Result<proto::Envelope>;

/// Answers an agent with the decision in the source's journal or, with `of_vote`, the vote in the
/// destination's. kPermissionDenied if the migration is with another agent.
Reply answer_outcome(worker::WorkerContext& context, const Uuid& migration, bool of_vote);

/// Handles an agent's commit: the process here must run. The reply confirms that it runs or ran.
/// kNotFound: the migration is unknown; kRefused: this host has abandoned its copy;
/// kPermissionDenied: another agent began the migration; kTimeout: not yet, ask again.
Reply answer_commit(worker::WorkerContext& context, const Uuid& migration);

/// Cancels a migration for an operator. kRefused once it is committed; kNotFound.
Reply answer_cancel(worker::WorkerContext& context, const Uuid& migration);

/// Lets a paused migration continue, for an operator. kRefused if it does not pause or already
/// continues; kNotFound.
Reply answer_continue(worker::WorkerContext& context, const Uuid& migration);

/// Changes limits of a running migration for an operator. kInvalidArgument for values out of range;
/// kRefused once the switchover has begun; kNotFound.
Reply answer_adjust(worker::WorkerContext& context, const Uuid& migration,
                    const proto::AdjustRequest& request);

/// Lists the migrations for an operator, the oldest first.
Reply answer_list(worker::WorkerContext& context, const proto::ListRequest& request);

/// Returns the status of a migration for an operator. kNotFound if this agent has no journal of it.
Reply answer_status(worker::WorkerContext& context, const Uuid& migration);

/// Describes this host for an operator or a local user: its resources, the processes that the
/// caller may move, and their running migrations. kUnsupported if it has no CUDA driver.
Reply answer_host(worker::WorkerContext& context);

/// Passes an operator's decision to the migration's owner, unless the other agent can be reached
/// and can decide. kInvalidArgument, kRefused, kNotFound: nothing was decided. kTimeout: the owner
/// did not accept the decision in time.
Reply answer_resolve(worker::WorkerContext& context, const Uuid& migration,
                     const proto::ResolveRequest& request);

}  // namespace gcr::daemon

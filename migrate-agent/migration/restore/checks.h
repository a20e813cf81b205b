// Checks whether a requester may restore a checkpoint, and whether that is possible now.
#pragma once

#include "migrate-agent/worker/runtime/context.h"
#include "proto/checkpoint.pb.h"
#include "store/directory.h"

namespace gcr::migration {

/// Gives the user with whose rights the directory is read: its owner, whose processes the requester
/// must be allowed to move. If root has no access to the directory, it is the local user who asks,
/// since only the owner can open it then. kNotFound, kPermissionDenied, kInvalidArgument.
Result<store::Owner> check_owner(const worker::WorkerContext& worker, const std::string& directory);

/// Checks the rights in the checkpoint. The requester must be allowed to move processes of all
/// users of all threads. A local user's job may hold no capabilities, and no group in which that
/// user is not now on this host; an operator's job is restored with its rights unchanged.
/// kPermissionDenied, naming the user or the group.
Status check_rights(const worker::WorkerContext& worker, const proto::Manifest& manifest);

/// Checks that the job of which the checkpoint was taken no longer runs on this host, suspended or
/// not. Other hosts are not checked. kRefused, naming the process.
Status check_originals(const proto::Manifest& manifest);

/// The agent's own address, with a name that its certificate has; else kInvalidArgument.
Result<std::string> own_address(const worker::WorkerContext& worker);

}  // namespace gcr::migration

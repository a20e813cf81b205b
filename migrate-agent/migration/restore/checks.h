// Whether a checkpoint may be loaded by whoever asks for it, and now.
#pragma once

#include "migrate-agent/worker/runtime/context.h"
#include "proto/checkpoint.pb.h"
#include "store/directory.h"

namespace gcr::migration {

/// With whose rights the directory is read: its owner's, who must be one whose processes the asker
/// may move. Where root may not look, the local user who asks, since only the owner's directory can
/// be opened. kNotFound, kPermissionDenied, kInvalidArgument.
Result<store::Owner> check_owner(const worker::WorkerContext& worker, const std::string& directory);

/// All users of all threads must be such ones. A local user's job may hold no capabilities, and no
/// group that this host does not give that user now; an operator's comes back as it was.
/// kPermissionDenied, naming the user or the group.
Status check_rights(const worker::WorkerContext& worker, const proto::Manifest& manifest);

/// The job from which the checkpoint was taken must not run on this host any more, suspended or
/// not. What runs on other hosts is not seen. kRefused, naming it.
Status check_originals(const proto::Manifest& manifest);

/// The agent's own address, by a name that its certificate has. kInvalidArgument if it has none.
Result<std::string> own_address(const worker::WorkerContext& worker);

}  // namespace gcr::migration

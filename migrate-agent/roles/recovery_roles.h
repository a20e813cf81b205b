// What the recoveries of both roles share. recovery_source.cc and recovery_destination.cc have
// their courses; roles.h has the entry point.
#pragma once

#include <asio/awaitable.hpp>

#include "migrate-agent/commit/commit_log.h"
#include "migrate-agent/roles/roles.h"

namespace gcr::agent {

asio::awaitable<Status> recover_source(RecoveryContext& context, commit::SourceLog log);
asio::awaitable<Status> recover_destination(RecoveryContext& context, commit::DestinationLog log);

}  // namespace gcr::agent

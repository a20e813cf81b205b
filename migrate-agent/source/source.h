// The source's role in a migration; roles.h has the others.
#pragma once

#include <asio/awaitable.hpp>

#include "migrate-agent/worker/context.h"
#include "proto/control.pb.h"

namespace gcr::agent {

/// Moves the process away: sends Events and, last, one MigrateReport to the operator. Errors of the
/// migration end up in the report; an exception that leaves it is logged and sent as a Failure.
asio::awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request);

}  // namespace gcr::agent

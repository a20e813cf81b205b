// Carries out one order with an agent.
#pragma once

#include "src/cli/migration_view.h"
#include "src/cli/order.h"
#include "src/control/ask.h"

namespace gcr::cli {

/// Sends the request and reads progress until the report; with `detach` until the agent has
/// accepted the order. If the connection is lost, returns the outcome from the agent's journal.
/// Handles SIGINT and SIGTERM while it runs: the first cancels the order, the second quits this
/// process.
Outcome converse(const Order& order, const control::AgentAddress& agent, MigrationView& view);

}  // namespace gcr::cli

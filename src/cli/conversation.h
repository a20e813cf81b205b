// The conversation with an agent about one order.
#pragma once

#include "src/cli/migration_view.h"
#include "src/cli/order.h"
#include "src/control/ask.h"

namespace gcr::cli {

/// Sends the request and reads progress until the report; with `detach` until the agent has
/// accepted the order. If the connection is lost, gives what the agent's journal says later. While
/// it runs it handles SIGINT and SIGTERM: the first cancels what was ordered, the second quits this
/// process.
Outcome converse(const Order& order, const control::AgentAddress& agent, MigrationView& view);

}  // namespace gcr::cli

// The agents whose migrations and checkpoints this one accepts: [[peers]] of agent.toml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"

namespace gcr::worker {

/// Checks that this agent, whose common name is `self`, accepts `what` ("migrations") of the agent
/// with that common name: one of `peers`, or any if `peers` is empty; always its own.
/// kPermissionDenied. Any thread.
Status check_peer(const std::vector<std::string>& peers, const std::string& self,
                  const std::string& agent, std::string_view what);

}  // namespace gcr::worker

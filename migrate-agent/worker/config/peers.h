// Which other agents this one believes: [[peers]] of agent.toml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"

namespace gcr::worker {

/// Whether this agent, which is called `self`, accepts `what` ("migrations") of the agent of that
/// common name: one of `peers`, or any if there are none; always its own. kPermissionDenied. Any
/// thread.
Status check_peer(const std::vector<std::string>& peers, const std::string& self,
                  const std::string& agent, std::string_view what);

}  // namespace gcr::worker

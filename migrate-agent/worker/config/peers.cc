#include "migrate-agent/worker/config/peers.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::worker {

Status check_peer(const std::vector<std::string>& peers, const std::string& self,
                  const std::string& agent, std::string_view what) {
  if (peers.empty() || (agent == self && !self.empty()) || std::ranges::count(peers, agent) > 0)
    return {};
  return Error(
      Code::kPermissionDenied,
      fmt::format("this agent accepts no {} of the agent \"{}\": no [[peers]] table of its "
                  "configuration names it",
                  what, agent));
}

}  // namespace gcr::worker

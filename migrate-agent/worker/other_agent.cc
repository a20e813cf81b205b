#include "migrate-agent/worker/other_agent.h"

namespace gcr::agent {

Result<control::AgentAddress> other_agent(const journal::Began& began, const Config& config,
                                          std::shared_ptr<asio::ssl::context> tls) {
  GCR_ASSIGN(auto endpoint, control::Endpoint::parse(began.peer()));
  return control::AgentAddress{std::move(endpoint), std::move(tls), began.peer_name(), config.host,
                               config.peer_silence()};
}

}  // namespace gcr::agent

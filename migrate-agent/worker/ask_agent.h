// One question to another agent, on a connection of its own. On the thread that runs the
// io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// The agent to ask, and how to reach it.
struct AgentAddress {
  control::Endpoint endpoint;
  std::string name;  ///< common name of its certificate
  std::shared_ptr<asio::ssl::context> tls;
  std::string own_host;               ///< this side's host in the Hello
  std::chrono::milliseconds silence;  ///< it answers or sends Alive within this
};

/// Asks about `migration` and gives the answer, which may be a Failure. kUnavailable or kTimeout if
/// the agent was not reached, or was lost before it answered; kPermissionDenied if an agent with
/// another name answers, or if `agent.name` is empty: then nobody is asked.
asio::awaitable<Result<proto::Envelope>> ask_agent(const AgentAddress& agent, Uuid migration,
                                                   const proto::Envelope& question);

}  // namespace gcr::agent

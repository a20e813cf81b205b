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

/// Who is asked, and how.
struct AgentAddress {
  control::Endpoint endpoint;
  std::string name;  ///< common name of its certificate
  std::shared_ptr<asio::ssl::context> tls;
  std::string own_host;               ///< what the Hello says of this side
  std::chrono::milliseconds silence;  ///< it answers, or says that it is alive, within this
};

/// A question about `migration`. The answer, which may be a Failure: an agent that says no was
/// reached. kUnavailable or kTimeout if it was not, or was lost before it answered;
/// kPermissionDenied if somebody else answers there, or if the name is empty: nobody is asked who
/// is not known.
asio::awaitable<Result<proto::Envelope>> ask_agent(const AgentAddress& agent, Uuid migration,
                                                   const proto::Envelope& question);

}  // namespace gcr::agent

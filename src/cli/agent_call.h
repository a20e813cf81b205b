// Single questions to an agent, each on a connection of its own.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

inline constexpr std::chrono::milliseconds kConnectTimeout = std::chrono::seconds(10);

/// An agent, and the certificates to show it.
struct Agent {
  control::Endpoint endpoint;
  std::shared_ptr<asio::ssl::context> tls;  ///< null: only local sockets can be used
};

/// For connections to `agent`: null if it is local, and no certificate is needed.
Result<std::shared_ptr<asio::ssl::context>> tls_for(const control::Endpoint& agent,
                                                    const control::TlsFiles& files);

/// The agent's reply to the question; a Failure becomes its Error. Connecting and answering may
/// take `timeout` each.
asio::awaitable<Result<proto::Envelope>> ask(const Agent& agent, const proto::Envelope& question,
                                             std::chrono::milliseconds timeout = kConnectTimeout);

/// The agent's migration with this id, or with the only id that begins like this.
/// kNotFound if there is none, kInvalidArgument, naming them, if there are several.
asio::awaitable<Result<Uuid>> find_migration(const Agent& agent, const std::string& id);

}  // namespace gcr::cli

// One question to an agent, on a connection of its own.
#pragma once

#include <asio/awaitable.hpp>
#include <memory>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// An agent, and the certificate that is shown to it.
struct Agent {
  control::Endpoint endpoint;
  std::shared_ptr<asio::ssl::context> tls;
};

inline constexpr std::chrono::milliseconds kConnectTimeout = std::chrono::seconds(10);

/// The answer, or the Error of a Failure. kUnavailable if the agent cannot be reached.
asio::awaitable<Result<proto::Envelope>> ask(const Agent& agent, proto::Envelope request);

/// The 16 bytes of an identifier on the wire, and back; all zeros for other lengths.
std::string to_bytes(const Uuid& uuid);
Uuid to_uuid(const std::string& bytes);

/// The identifier that `text` is, or the only one among the agent's migrations that begins with it
/// (at least 8 characters). kInvalidArgument, kNotFound.
asio::awaitable<Result<Uuid>> find_migration(const Agent& agent, std::string text);

}  // namespace gcr::cli

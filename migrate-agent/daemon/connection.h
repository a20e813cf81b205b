// The only bytes that the daemon itself reads from the network: the preface of a new connection.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// Reads exactly the preface, within `timeout`. kProtocol if it is none, kTimeout, kUnavailable if
/// the peer closed before.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// The descriptor of `socket`, in blocking mode, close-on-exec; `socket` is closed afterwards.
Result<UniqueFd> take_descriptor(asio::ip::tcp::socket socket);

}  // namespace gcr::agent

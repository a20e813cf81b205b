// The daemon's side of TCP: it listens, and of a new connection it reads the preface, no more.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// Binds `acceptor` and listens; "address:port" as bound.
Result<std::string> listen_on(asio::ip::tcp::acceptor& acceptor, const control::Endpoint& endpoint);

/// Reads exactly the preface, within `timeout`. kProtocol if it is none, kTimeout, kUnavailable if
/// the peer closed before.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// The descriptor of `socket`, in blocking mode, close-on-exec; `socket` is closed afterwards.
Result<UniqueFd> take_descriptor(asio::ip::tcp::socket socket);

}  // namespace gcr::agent

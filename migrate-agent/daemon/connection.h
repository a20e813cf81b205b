// The daemon's side of TCP: it listens, and reads only the preface of a new connection.
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

/// The unit by which connections are counted: an IPv4 address, or the 64-bit network of an IPv6
/// address, since one host usually has all addresses of such a network.
std::string network_of(const asio::ip::address& address);

/// Reads exactly the preface, within `timeout`. kProtocol if it is not valid; kTimeout;
/// kUnavailable if the peer closed before.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// The descriptor of `socket`, in blocking mode, close-on-exec; `socket` is closed afterwards.
Result<UniqueFd> take_descriptor(asio::ip::tcp::socket socket);

}  // namespace gcr::agent

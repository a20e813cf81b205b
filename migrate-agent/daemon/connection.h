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

/// Where a connection comes from, as far as its connections are counted: an IPv4 address, or the
/// network of 64 bits that an IPv6 address is in, since whoever has one of those has all of it.
std::string network_of(const asio::ip::address& address);

/// Reads exactly the preface, within `timeout`. kProtocol if it is none, kTimeout, kUnavailable if
/// the peer closed before.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// The descriptor of `socket`, in blocking mode, close-on-exec; `socket` is closed afterwards.
Result<UniqueFd> take_descriptor(asio::ip::tcp::socket socket);

}  // namespace gcr::agent

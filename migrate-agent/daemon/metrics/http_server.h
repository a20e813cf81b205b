// Answers GET over HTTP/1.1, for monitoring systems: one request per connection, without TLS.
// Unauthenticated clients may connect: each has 8 KiB and limited time for its request and reply,
// and the number of connections is limited. No library is used: decision 15 in docs/design.md.
// Belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <string>

namespace gcr::daemon {

struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Returns the answer for a path ("/metrics"); must outlive the io_context.
using HttpAnswerer = std::function<asio::awaitable<HttpAnswer>(std::string path)>;

struct HttpLimits {
  unsigned connections = 16;
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

/// Starts to accept, until the io_context is destroyed. `acceptor` must be listening.
void serve_http(asio::ip::tcp::acceptor acceptor, HttpAnswerer answerer, HttpLimits limits = {});

}  // namespace gcr::daemon

// Answers GET over HTTP/1.1, for whoever scrapes metrics and asks for readiness: one request per
// connection, without TLS. Strangers may connect: each has 8 KiB and limited time for its request
// and its answer, and there are only so many at a time. No library does it: decision 15 in
// docs/design.md. Belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace gcr::daemon {

struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Answers a path ("/metrics"); it outlives the server.
using HttpAnswerer = std::function<asio::awaitable<HttpAnswer>(std::string path)>;

struct HttpLimits {
  unsigned connections = 16;
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

class HttpServer {
 public:
  /// Accepts from now on. `acceptor` listens.
  HttpServer(asio::ip::tcp::acceptor acceptor, HttpAnswerer answerer, HttpLimits limits = {});
  /// Accepts no more; what is being answered is answered.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::daemon

// Answers GET over HTTP/1.1, for whoever scrapes metrics and asks for readiness: one request per
// connection, without TLS. Strangers may connect: at most 16 at a time, each with 8 KiB and 10 s
// for its request and its answer. Belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace gcr::agent {

struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Answers a path ("/metrics"); it outlives the server.
using HttpAnswerer = std::function<asio::awaitable<HttpAnswer>(std::string path)>;

class HttpServer {
 public:
  /// Accepts from now on. `acceptor` listens.
  HttpServer(asio::ip::tcp::acceptor acceptor, HttpAnswerer answerer);
  /// Accepts no more; what is being answered is answered.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::agent

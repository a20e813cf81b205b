#include "migrate-agent/daemon/metrics/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read_until.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>

#include "src/control/deadline.h"

namespace gcr::daemon {
namespace {

using asio::ip::tcp;

constexpr std::size_t kMaxRequestBytes = 8192;
constexpr std::chrono::milliseconds kAcceptPause{100};

struct Request {
  std::string method;
  std::string path;  ///< without a query
};

/// Parses the request line of RFC 9112, section 3; none if it is invalid.
std::optional<Request> parse(std::string_view text) {
  const std::string_view line = text.substr(0, text.find("\r\n"));
  const std::size_t method_end = line.find(' ');
  const std::size_t version = line.rfind(" HTTP/1.");
  if (method_end == std::string_view::npos || version == std::string_view::npos ||
      version <= method_end) {
    return std::nullopt;
  }
  std::string_view target = line.substr(method_end + 1, version - method_end - 1);
  target = target.substr(0, target.find('?'));
  if (!target.starts_with('/')) return std::nullopt;
  return Request{std::string(line.substr(0, method_end)), std::string(target)};
}

const char* reason_phrase(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

std::string head_of(const HttpAnswer& answer) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
      answer.status, reason_phrase(answer.status), answer.content_type, answer.body.size(),
      answer.status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

struct Server {
  tcp::acceptor acceptor;
  HttpAnswerer answerer;
  HttpLimits limits;
  unsigned connections = 0;
};

asio::awaitable<void> answer(tcp::socket& socket, const HttpAnswerer& answerer) {
  std::string text;
  std::error_code error;
  co_await asio::async_read_until(socket, asio::dynamic_buffer(text, kMaxRequestBytes), "\r\n\r\n",
                                  asio::redirect_error(asio::use_awaitable, error));
  if (error && error != asio::error::not_found) co_return;
  const auto request = error ? std::nullopt : parse(text);
  HttpAnswer reply;
  if (!request) {
    reply.status = 400;
  } else if (request->method != "GET" && request->method != "HEAD") {
    reply.status = 405;
  } else {
    reply = co_await answerer(request->path);
  }
  std::string bytes = head_of(reply);
  if (request && request->method != "HEAD") bytes += reply.body;
  co_await asio::async_write(socket, asio::buffer(bytes),
                             asio::redirect_error(asio::use_awaitable, error));
  // Read to the end: unread input would turn closing into a reset, and the reply might be lost.
  socket.shutdown(tcp::socket::shutdown_send, error);
  std::array<char, 512> rest{};
  while (!error) {
    co_await socket.async_read_some(asio::buffer(rest),
                                    asio::redirect_error(asio::use_awaitable, error));
  }
}

asio::awaitable<void> serve(std::shared_ptr<Server> server, tcp::socket socket) {
  ++server->connections;
  const control::Deadline deadline(socket.get_executor(), server->limits.patience, [&socket] {
    std::error_code ignored;
    socket.close(ignored);
  });
  co_await answer(socket, server->answerer);
  --server->connections;
}

asio::awaitable<void> accept_all(std::shared_ptr<Server> server) {
  tcp::acceptor& acceptor = server->acceptor;
  asio::steady_timer pause(acceptor.get_executor());
  for (;;) {
    std::error_code error;
    tcp::socket socket =
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      spdlog::warn("cannot accept a connection for metrics: {}", error.message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (server->connections < server->limits.connections) {
      asio::co_spawn(acceptor.get_executor(), serve(server, std::move(socket)), asio::detached);
    }
  }
}

}  // namespace

void serve_http(tcp::acceptor acceptor, HttpAnswerer answerer, HttpLimits limits) {
  const auto executor = acceptor.get_executor();
  const auto server =
      std::make_shared<Server>(Server{std::move(acceptor), std::move(answerer), limits});
  asio::co_spawn(executor, accept_all(server), asio::detached);
}

}  // namespace gcr::daemon

// The metrics server, with well-behaved and hostile clients.
#include "migrate-agent/daemon/metrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <optional>
#include <thread>

namespace gcr::daemon {
namespace {

using asio::ip::tcp;
using testing::HasSubstr;
using testing::StartsWith;

asio::awaitable<HttpAnswer> answer(std::string path) {
  co_return HttpAnswer{.status = path == "/there" ? 200U : 404U, .body = "you asked for " + path};
}

class Client {
 public:
  explicit Client(const tcp::endpoint& server) : socket_(io_) { socket_.connect(server); }

  void send(const std::string& bytes) {
    std::error_code closed;
    asio::write(socket_, asio::buffer(bytes), closed);
  }
  /// Everything until the server closes.
  std::string receive() {
    std::string text;
    std::error_code end;
    asio::read(socket_, asio::dynamic_buffer(text), end);
    return text;
  }

 private:
  asio::io_context io_;
  tcp::socket socket_;
};

class HttpServerTest : public testing::Test {
 protected:
  void serve(HttpLimits limits = {}) {
    tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    endpoint_ = acceptor.local_endpoint();
    serve_http(std::move(acceptor), answer, limits);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~HttpServerTest() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }
  std::string ask(const std::string& bytes) {
    Client client(endpoint_);
    client.send(bytes);
    return client.receive();
  }

  asio::io_context io_{1};
  tcp::endpoint endpoint_;
  std::thread thread_;
};

TEST_F(HttpServerTest, GetIsAnsweredAndTheConnectionCloses) {
  serve();
  const std::string reply = ask("GET /there?now HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 20\r\n"));
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\nyou asked for /there"));
}

TEST_F(HttpServerTest, HeadHasTheLengthWithoutContent) {
  serve();
  const std::string reply = ask("HEAD /there HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Content-Length: 20\r\n"));
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, OtherMethodsAreRefused) {
  serve();
  EXPECT_THAT(ask("POST /there HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(ask("GET /elsewhere HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(HttpServerTest, MalformedRequestIsABadRequest) {
  serve();
  for (const char* bytes :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /there\r\n\r\n", "GET there HTTP/1.1\r\n\r\n",
        "GCRM\x01\x01\r\n\r\n", "GET  HTTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(ask(bytes), StartsWith("HTTP/1.1 400 ")) << bytes;
  }
}

TEST_F(HttpServerTest, EndlessRequestIsCutOff) {
  serve();
  EXPECT_THAT(ask("GET /there HTTP/1.1\r\nX: " + std::string(100'000, 'x')),
              testing::AnyOf(StartsWith("HTTP/1.1 400 "), ""));
  EXPECT_THAT(ask("GET /there HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, SilentClientIsDisconnected) {
  serve({.patience = std::chrono::milliseconds(100)});
  EXPECT_EQ(ask(""), "");
  EXPECT_EQ(ask("GET /there HTTP/1.1\r\n"), "");
}

TEST_F(HttpServerTest, ExcessConnectionsAreClosedAtOnce) {
  serve({.connections = 2});
  std::optional<Client> first(std::in_place, endpoint_);
  const Client second(endpoint_);
  EXPECT_EQ(ask("GET /there HTTP/1.1\r\n\r\n"), "");
  first.reset();
  std::string answer;  // there is a free slot as soon as the server has seen that
  while (answer.empty()) answer = ask("GET /there HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, SlowClientsDoNotDelayOthers) {
  serve();
  Client slow(endpoint_);
  slow.send("GET /the");
  EXPECT_THAT(ask("GET /there HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace gcr::daemon

// What an agent publishes for monitoring: metrics, and whether it is ready.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <csignal>
#include <fstream>

#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {
namespace {

using asio::ip::tcp;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kSettings =
    "metrics_listen = \"127.0.0.1:0\"\n[criu]\ncommand = [\"/bin/true\"]";

class Observability : public testing::Test {
 protected:
  Observability()
      : agent_(credentials_, kSettings),
        port_(agent_.number_in_log("metrics and /healthz at", "127.0.0.1:")) {}

  std::string get(const std::string& path) const {
    asio::io_context io;
    tcp::socket socket(io);
    socket.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port_)});
    asio::write(socket, asio::buffer("GET " + path + " HTTP/1.1\r\nHost: agent\r\n\r\n"));
    std::string text;
    std::error_code end;
    asio::read(socket, asio::dynamic_buffer(text), end);
    return text;
  }
  void set_problems(const std::string& lines) const {
    std::ofstream(agent_.state_dir() / "PROBLEMS") << lines;
  }

  control::test::Credentials credentials_;
  AgentProcess agent_;
  int port_;
};

TEST_F(Observability, MetricsHaveTheStateAndCertificateExpiry) {
  const std::string text = get("/metrics");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(text, HasSubstr("\ngcr_workers 0\n"));
  EXPECT_THAT(text, HasSubstr("gcr_certificate_expiry_timestamp_seconds{certificate=\"agent\"}"));
  EXPECT_THAT(text,
              HasSubstr("gcr_certificate_expiry_timestamp_seconds{certificate=\"authority\"}"));
}

TEST_F(Observability, MetricsShowARunningMigrationAndItsEnd) {
  Client client(agent_, credentials_, "operator");
  client.ask("claim");
  const std::string during = get("/metrics");
  EXPECT_THAT(during, HasSubstr("\ngcr_migrations_in_progress{role=\"source\"} 1\n"));
  EXPECT_THAT(during, HasSubstr("\ngcr_connections{state=\"authenticated\"} 1\n"));
  client.release();
  ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
  const std::string after = get("/metrics");
  EXPECT_THAT(after, HasSubstr("\ngcr_migrations_in_progress{role=\"source\"} 0\n"));
  EXPECT_THAT(after, HasSubstr("\ngcr_connections{state=\"authenticated\"} 0\n"));
}

TEST_F(Observability, WorkingAgentIsReady) {
  const std::string text = get("/healthz");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("\"ready\":true"));
  EXPECT_THAT(text, HasSubstr("\"problems\":[]"));
}

TEST_F(Observability, UnreadyAgentNamesEveryReason) {
  set_problems("no driver\nno \"CRIU\"\n");
  const std::string text = get("/healthz");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(text, HasSubstr("\"ready\":false"));
  EXPECT_THAT(text, HasSubstr("\"problems\":[\"no driver\",\"no \\\"CRIU\\\"\"]"));
}

TEST_F(Observability, CheckResultsAreCachedForSeconds) {
  EXPECT_THAT(get("/healthz"), HasSubstr("\"ready\":true"));
  set_problems("too late\n");
  EXPECT_THAT(get("/healthz"), HasSubstr("\"ready\":true"));
}

TEST_F(Observability, HangingCheckMeansUnreadyAndDelaysNoRequest) {
  set_problems("hang\n");
  std::string health;
  std::thread asking([&] { health = get("/healthz"); });
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200 "));
  asking.join();
  EXPECT_THAT(health, HasSubstr("the checks of this host did not end within"));
}

TEST_F(Observability, OtherPathsAreNotFound) {
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(get("/../etc/passwd"), StartsWith("HTTP/1.1 404 "));
}

}  // namespace
}  // namespace gcr::daemon::test

// What the tests of a migration share: a fake agent for each outcome, and gcr-migrate run against
// it.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/src/cli/fake_agent.h"
#include "tests/src/cli/process.h"

namespace gcr::cli::test {

/// The id of every fake migration.
inline constexpr const char* kExampleId = "6f1c2d3e-0000-4000-8000-000000000001";
std::string example_id_bytes();

/// Half of the third round, with values in every field.
proto::Progress example_progress();

asio::awaitable<void> send_message(control::ControlChannel& channel, proto::Envelope message);
asio::awaitable<void> send_started(control::ControlChannel& channel);
asio::awaitable<void> send_progress(control::ControlChannel& channel, proto::Progress progress);
asio::awaitable<void> send_report(control::ControlChannel& channel, proto::MigrateReport report);

/// An Event, nothing else: then the agent disconnects.
asio::awaitable<void> send_event(control::ControlChannel& channel);

/// An Event and this report.
Play report(const proto::MigrateReport& what);

/// A Failure.
Play fail(const Error& error);

struct PhaseFields {
  const char* name;
  const char* host;
  const char* track;
  double start_ms;
  double duration_ms;
};
void add_phase(proto::MigrateReport& report, const PhaseFields& fields);

/// A round with values in every field.
proto::Round& add_round(proto::MigrateReport& report, unsigned number, double start_ms,
                        double duration_ms);

/// "the reason" as its message.
proto::MigrateReport failed_report(Code code, bool touched, bool committed = false);

/// One line on standard error with this text, and no line of success.
void expect_one_error(const Finished& finished, int exit_status, const std::string& says);

class Migrate : public testing::Test {
 protected:
  std::vector<std::string> words(const std::string& source, std::vector<std::string> options = {}) {
    for (std::string word :
         {std::string("--ca"), tls_.authority, std::string("--cert"), tls_.certificate,
          std::string("--key"), tls_.key, source, destination_, std::string("4711")}) {
      options.push_back(std::move(word));
    }
    return options;
  }

  Finished against(const Play& play, std::vector<std::string> options = {}) {
    FakeAgent agent(credentials_.context({}), play);
    Finished finished = run_cli(words(agent.address(), std::move(options)));
    request_ = agent.request();
    return finished;
  }

  control::test::Credentials credentials_;
  control::TlsFiles tls_ = credentials_.issue({.role = "operator", .common_name = "alice"});
  std::string destination_ = "node2:99";
  std::optional<proto::MigrateRequest> request_;
};

}  // namespace gcr::cli::test

// The agent's own command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/agent_process.h"

namespace gcr::agent::test {
namespace {

using testing::HasSubstr;

TEST(AgentCommandLine, GoodConfigurationPassesTheCheck) {
  control::test::Credentials credentials;
  const control::TlsFiles tls = credentials.issue({});
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(config, "[tls]\nauthority = \"" + tls.authority +
                                            "\"\ncertificate = \"" + tls.certificate +
                                            "\"\nkey = \"" + tls.key + "\"\n");
  const Finished checked = run_to_end({GCR_TEST_AGENT, "--check-config", "--config", config});
  EXPECT_EQ(checked.exit_status, 0) << checked.output;
}

TEST(AgentCommandLine, MistakeInTheConfigurationEndsItWithItsLine) {
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(config, "hugepage = \"auto\"\n");
  const Finished checked = run_to_end({GCR_TEST_AGENT, "--config", config});
  EXPECT_EQ(checked.exit_status, 2);
  EXPECT_THAT(checked.output,
              HasSubstr(config + ":1: hugepage is not known; did you mean hugepages?"));
}

TEST(AgentCommandLine, MissingCertificateEndsItBeforeItListens) {
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(config, "[tls]\nauthority = \"" + folder.path() + "/ca.crt\"\n");
  const Finished started = run_to_end({GCR_TEST_AGENT, "--config", config});
  EXPECT_EQ(started.exit_status, 2);
  EXPECT_THAT(started.output, HasSubstr(folder.path() + "/ca.crt"));
}

TEST(AgentCommandLine, PortInUseEndsItWithTheAddress) {
  control::test::Credentials credentials;
  const AgentProcess first(credentials);
  const control::TlsFiles tls = credentials.issue({});
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(
      config, "listen = \"" + first.endpoint().to_string() + "\"\nstate_dir = \"" + folder.path() +
                  "\"\nruntime_dir = \"" + folder.path() + "\"\n[tls]\nauthority = \"" +
                  tls.authority + "\"\ncertificate = \"" + tls.certificate + "\"\nkey = \"" +
                  tls.key + "\"\n");
  const Finished second = run_to_end({GCR_TEST_AGENT, "--config", config});
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.output, HasSubstr("cannot listen on " + first.endpoint().to_string()));
}

TEST(AgentCommandLine, WrongOptionsAreUsageErrors) {
  EXPECT_EQ(run_to_end({GCR_TEST_AGENT, "--no-such-option"}).exit_status, 2);
  EXPECT_EQ(run_to_end({GCR_TEST_AGENT, "--ready-fd", "-3"}).exit_status, 2);
  EXPECT_EQ(run_to_end({GCR_TEST_AGENT, "--config", "/nonexistent/x"}).exit_status, 2);
}

TEST(AgentCommandLine, HelpAndVersionSucceed) {
  const Finished help = run_to_end({GCR_TEST_AGENT, "--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.output, HasSubstr("--check-config"));
  EXPECT_THAT(help.output, testing::Not(HasSubstr("--worker")));
  EXPECT_THAT(run_to_end({GCR_TEST_AGENT, "--version"}).output, HasSubstr("migrate-agent 0"));
}

}  // namespace
}  // namespace gcr::agent::test

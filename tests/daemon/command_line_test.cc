// The agent's own command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {
namespace {

using testing::HasSubstr;

TEST(AgentCommandLine, CheckAcceptsAGoodConfiguration) {
  control::test::Credentials credentials;
  const control::TlsFiles tls = credentials.issue({});
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(
      config, "[tls]\nauthority = \"" + tls.authority + "\"\ncertificate = \"" + tls.certificate +
                  "\"\nkey = \"" + tls.key + "\"\n[criu]\ncommand = [\"true\"]\n");
  const Finished checked = run_to_end({GCR_TEST_AGENT, "--check-config", "--config", config});
  EXPECT_EQ(checked.exit_status, 0) << checked.output;
}

/// The output of --check-config for this configuration with a valid agent certificate, whose files
/// `change` changes before.
Finished check(const std::string& settings, const gcr::test::LeafOptions& leaf = {},
               const std::function<void(const control::TlsFiles&)>& change = {}) {
  control::test::Credentials credentials;
  const control::TlsFiles tls = credentials.issue(leaf);
  if (change) change(tls);
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(
      config, "state_dir = \"" + folder.path() + "/s\"\nruntime_dir = \"" + folder.path() +
                  "/r\"\n" + settings + "\n[tls]\nauthority = \"" + tls.authority +
                  "\"\ncertificate = \"" + tls.certificate + "\"\nkey = \"" + tls.key + "\"\n");
  return run_to_end({GCR_TEST_AGENT, "--check-config", "--config", config});
}

constexpr const char* kCriu = "[criu]\ncommand = [\"true\"]\n";

TEST(AgentCommandLine, CheckChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/deep/down";
  const Finished checked = check("audit_log = \"" + path + "/audit\"\n" + kCriu);
  EXPECT_EQ(checked.exit_status, 0) << checked.output;
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/deep"));
}

TEST(AgentCommandLine, CheckNamesEveryProblemAtOnce) {
  const Finished checked = check(
      "data_addresses = [\"192.0.2.77\"]\nmetrics_listen = \"192.0.2.78:1\"\n"
      "local_socket = \"/dev/null/socket\"\n"
      "[[operators]]\nname = \"alice\"\nusers = [\"no-such-user\", \"1001\", \"*\"]\n"
      "[criu]\ncommand = [\"/no/criu\"]\nreaper = \"/no/reaper\"\n"
      "[slurm]\nnode = \"node1\"\nspool = \"/no/spool\"\nlibrary = \"/no/library\"\n"
      "folder = \"/dev/null/jobs\"\n");
  EXPECT_EQ(checked.exit_status, 2);
  for (const char* problem :
       {"data_addresses: 192.0.2.77: ", "metrics_listen: 192.0.2.78: ",
        "local_socket: /dev/null is not a directory",
        "\"no-such-user\", but this host has no such user",
        "criu.command: there is no program /no/criu", "criu.reaper: there is no program /no/reaper",
        "criu.reaper: there is no program /no/gcr-keeper",
        "criu.reaper: there is no program /no/gcr-in-criu.so",
        "criu.reaper: there is no program /no/gcr-slurm-adopt",
        "slurm.spool: /no/spool is not a directory", "slurm.library: there is no file /no/library",
        "slurm.folder: /dev/null is not a directory"}) {
    EXPECT_THAT(checked.output, HasSubstr(problem));
  }
}

TEST(AgentCommandLine, CheckFindsACertificateForAnotherHost) {
  const Finished checked = check(std::string("advertise = \"127.0.0.9:7411\"\n") + kCriu);
  EXPECT_EQ(checked.exit_status, 2);
  EXPECT_THAT(checked.output, HasSubstr("is not made out to 127.0.0.9"));
}

TEST(AgentCommandLine, CheckFindsACertificateWithoutTheAgentRole) {
  const Finished checked = check(kCriu, {.role = "operator"});
  EXPECT_EQ(checked.exit_status, 2);
  EXPECT_THAT(checked.output, HasSubstr("lacks gcr:role:agent"));
}

TEST(AgentCommandLine, CheckWarnsOfAKeyReadableByOthers) {
  for (const mode_t mode : {0640, 0604, 0660}) {
    const Finished checked = check(kCriu, {}, [&](const control::TlsFiles& tls) {
      ASSERT_EQ(::chmod(tls.key.c_str(), mode), 0);
    });
    EXPECT_EQ(checked.exit_status, 0) << checked.output;
    EXPECT_THAT(checked.output, HasSubstr("warning: tls.key: "));
    EXPECT_THAT(checked.output, HasSubstr("chmod 600"));
  }
  EXPECT_THAT(check(kCriu).output, testing::Not(HasSubstr("warning")));
}

TEST(AgentCommandLine, CheckRefusesAnEncryptedKey) {
  const Finished checked = check(kCriu, {}, [](const control::TlsFiles& tls) {
    gcr::test::write_private_file(tls.key,
                                  gcr::test::encrypted(gcr::test::TestAuthority().issue().key));
  });
  EXPECT_EQ(checked.exit_status, 2);
  EXPECT_THAT(checked.output,
              HasSubstr("is encrypted, and gcr-migrate never asks for a passphrase"));
}

TEST(AgentCommandLine, ConfigurationErrorNamesItsLine) {
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(config, "hugepage = \"auto\"\n");
  const Finished checked = run_to_end({GCR_TEST_AGENT, "--config", config});
  EXPECT_EQ(checked.exit_status, 2);
  EXPECT_THAT(checked.output, HasSubstr(config + ":1: hugepage is not known; known are "));
}

TEST(AgentCommandLine, MissingCertificateStopsItBeforeItListens) {
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/agent.toml";
  gcr::test::write_private_file(config, "[tls]\nauthority = \"" + folder.path() + "/ca.crt\"\n");
  const Finished started = run_to_end({GCR_TEST_AGENT, "--config", config});
  EXPECT_EQ(started.exit_status, 2);
  EXPECT_THAT(started.output, HasSubstr(folder.path() + "/ca.crt"));
}

TEST(AgentCommandLine, PortInUseIsAnErrorWithTheAddress) {
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
}  // namespace gcr::daemon::test

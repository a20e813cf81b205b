// Names of hosts.toml in place of addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/src/cli/fake_agent.h"
#include "tests/src/cli/process.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using testing::HasSubstr;

asio::awaitable<void> list_nothing(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_list_reply();
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
}

asio::awaitable<void> refuse(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_failure()->set_code("refused");
  message.mutable_failure()->set_message("not today");
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
}

class Hosts : public testing::Test {
 protected:
  Hosts() : folder_(testing::TempDir() + "/gcr-hosts-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_ / "gcr-migrate");
  }
  ~Hosts() override { std::filesystem::remove_all(folder_); }

  std::string file() const { return folder_ / "gcr-migrate" / "hosts.toml"; }
  void write(const std::string& text) const { std::ofstream(file()) << text; }

  Finished run_with_hosts(const std::vector<std::string>& arguments) const {
    std::vector<std::string> environment = cli_environment();
    environment.push_back("XDG_CONFIG_HOME=" + folder_.string());
    return run(cli_words(arguments), environment);
  }
  std::vector<std::string> with_certificates(std::vector<std::string> words) {
    const control::TlsFiles tls = credentials_.issue({.role = "operator"});
    words.insert(words.end(), {"--ca", tls.authority, "--cert", tls.certificate, "--key", tls.key});
    return words;
  }

  std::filesystem::path folder_;
  control::test::Credentials credentials_;
};

TEST_F(Hosts, NameIsReplacedByItsAddress) {
  FakeAgent agent(credentials_.context({}), list_nothing);
  write("near = \"" + agent.address() + "\"\n");
  const Finished listed = run_with_hosts(with_certificates({"list", "near"}));
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_EQ(agent.requests().size(), 1U);
}

TEST_F(Hosts, HostTableNamesTheCertificates) {
  const control::TlsFiles tls = credentials_.issue({.role = "operator"});
  FakeAgent agent(credentials_.context({}), list_nothing);
  write("[far]\nagent = \"" + agent.address() + "\"\nca = \"" + tls.authority + "\"\ncert = \"" +
        tls.certificate + "\"\nkey = \"" + tls.key + "\"\n");
  const Finished listed = run_with_hosts({"list", "far"});
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_EQ(agent.requests().size(), 1U);
}

TEST_F(Hosts, CommandLineOverridesCertificates) {
  FakeAgent agent(credentials_.context({}), list_nothing);
  write("[far]\nagent = \"" + agent.address() +
        "\"\nca = \"/no/ca\"\ncert = \"/no/c\"\nkey = \"/no/k\"\n");
  const Finished listed = run_with_hosts(with_certificates({"list", "far"}));
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
}

TEST_F(Hosts, SourceGetsTheDestinationsAddress) {
  FakeAgent agent(credentials_.context({}), refuse);
  write("near = \"" + agent.address() + "\"\n[there]\nagent = \"192.0.2.7\"\n");
  const Finished migrated = run_with_hosts(with_certificates({"near", "there", "4711"}));
  EXPECT_EQ(migrated.exit_status, 3) << migrated.err;
  ASSERT_TRUE(agent.request());
  EXPECT_EQ(agent.request()->destination(), "192.0.2.7:7411");
}

TEST_F(Hosts, UnknownNameIsAnAddress) {
  FakeAgent agent(credentials_.context({}), list_nothing);
  write("near = \"192.0.2.7\"\n");
  const Finished listed = run_with_hosts(with_certificates({"list", agent.address()}));
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
}

struct Mistake {
  const char* name;
  const char* text;
  const char* says;
};

class HostsMistake : public Hosts, public testing::WithParamInterface<Mistake> {};

TEST_P(HostsMistake, IsAUsageErrorWithItsLine) {
  write(GetParam().text);
  const Finished listed = run_with_hosts({"list", "near"});
  EXPECT_EQ(listed.exit_status, 2);
  EXPECT_THAT(listed.err, HasSubstr(file() + GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostsMistake,
    testing::Values(
        Mistake{"Syntax", "near = ", ":1: "},
        Mistake{"UnknownKey", "[near]\nagent = \"a\"\ncertificate = \"b\"\n",
                ":3: near.certificate is not known; a host has agent, ca, cert, key and crl"},
        Mistake{"NoAgent", "[near]\nca = \"a\"\n", ":1: near has no agent"},
        Mistake{"NoText", "near = 7\n", ":1: near must be a string"},
        Mistake{"NoAddress", "near = \"a:b\"\n", ":1: near: "},
        Mistake{"OfAnother", "near = \"a\"\nfar = \"\"\n", ":2: far must be a string"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gcr::cli::test

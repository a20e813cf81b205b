#include "migrate-agent/worker/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace gcr::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Config, EmptyFileGivesTheDefaults) {
  const auto config = worker::parse_config("", "test.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->listen.to_string(), "0.0.0.0:7411");
  EXPECT_FALSE(config->host.empty());
  EXPECT_EQ(config->hugepages, hostmem::HugepagePolicy::kAuto);
  EXPECT_EQ(config->landing_window_bytes, 4 * kGiB);
  EXPECT_EQ(config->peer_silence_ms, 15'000U);
  EXPECT_EQ(config->advertise, "");
  EXPECT_EQ(config->lanes, 0U);
  EXPECT_TRUE(config->data_addresses.empty());
  EXPECT_FALSE(config->unencrypted_data);
  EXPECT_THAT(config->criu.argv, ElementsAre("criu"));
  EXPECT_THAT(config->criu.reaper.string(), testing::EndsWith("gcr-reaper"));
}

TEST(Config, EveryKeyIsRead) {
  const auto config = worker::parse_config(R"(
listen = "[::1]:80"
host = "node1"
lanes = 8
data_addresses = ["10.1.0.5", "fe80::1%eth0"]
unencrypted_data = true
hugepages = "require"
landing_window = "512 MiB"
gpus = ["GPU-6f1c2d3e-0000-4000-8000-000000000001"]
log_level = "debug"
max_startups = 10
startup_timeout_ms = 500
peer_silence_ms = 3000
advertise = "node1"
sysfs = "/host/sys"
state_dir = "/s"
runtime_dir = "/r"
[tls]
authority = "/a"
certificate = "/c"
key = "/k"
[criu]
command = ["/lib/ld.so", "/bin/criu"]
reaper = "/x/gcr-reaper"
plugins = "/x/plugins"
plugin_environment = ["KFD_NUMA_CHECK=0", "X="]
[slurm]
node = "n1"
spool = "/x/spool"
library = "/x/libslurmfull.so"
folder = "/x/jobs"
)",
                                           "test.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->listen.to_string(), "[::1]:80");
  EXPECT_EQ(config->host, "node1");
  EXPECT_EQ(config->lanes, 8U);
  EXPECT_THAT(config->data_addresses, ElementsAre("10.1.0.5", "fe80::1%eth0"));
  EXPECT_TRUE(config->unencrypted_data);
  EXPECT_EQ(config->hugepages, hostmem::HugepagePolicy::kRequire);
  EXPECT_EQ(config->landing_window_bytes, 512 * kMiB);
  ASSERT_EQ(config->gpus.size(), 1U);
  EXPECT_EQ(config->gpus[0].to_string(), "6f1c2d3e-0000-4000-8000-000000000001");
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->max_startups, 10U);
  EXPECT_EQ(config->startup_timeout_ms, 500U);
  EXPECT_EQ(config->peer_silence_ms, 3000U);
  EXPECT_EQ(config->advertise, "node1:7411");
  EXPECT_EQ(config->sysfs, "/host/sys");
  EXPECT_EQ(config->state_dir, "/s");
  EXPECT_EQ(config->runtime_dir, "/r");
  EXPECT_EQ(config->tls.authority, "/a");
  EXPECT_EQ(config->tls.certificate, "/c");
  EXPECT_EQ(config->tls.key, "/k");
  EXPECT_THAT(config->criu.argv, ElementsAre("/lib/ld.so", "/bin/criu"));
  EXPECT_EQ(config->criu.reaper, "/x/gcr-reaper");
  EXPECT_EQ(config->criu.plugins, "/x/plugins");
  EXPECT_THAT(config->criu.plugin_environment, ElementsAre("KFD_NUMA_CHECK=0", "X="));
  EXPECT_EQ(config->slurm.node, "n1");
  EXPECT_EQ(config->slurm.spool, "/x/spool");
  EXPECT_EQ(config->slurm.library, "/x/libslurmfull.so");
  EXPECT_EQ(config->slurm.folder, "/x/jobs");
  EXPECT_EQ(config->slurm.adopter, "/x/gcr-slurm-adopt");
}

TEST(Config, BareIpv6AddressHasTheDefaultPort) {
  const auto config = worker::parse_config("listen = \"::0\"", "test.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->listen.to_string(), "[::0]:7411");
}

TEST(Config, PortZeroMeansAnyPort) {
  for (const char* listen : {"127.0.0.1:0", "[::]:0"}) {
    const auto config =
        worker::parse_config(std::string("listen = \"") + listen + "\"", "test.toml");
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->listen.to_string(), listen);
  }
}

struct Mistake {
  const char* name;
  const char* text;
  const char* says;
};

class ConfigMistake : public testing::TestWithParam<Mistake> {};

TEST_P(ConfigMistake, IsReportedWithFileLineAndKey) {
  const auto config = worker::parse_config(GetParam().text, "test.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(config.error().message(), StartsWith("test.toml:"));
  EXPECT_THAT(config.error().message(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigMistake,
    testing::Values(
        Mistake{"Syntax", "listen = ", "test.toml:1"},
        Mistake{"UnknownKey", "\nlane = 3",
                "test.toml:2: lane is not known; known are advertise, "},
        Mistake{"UnknownKeyInTable", "[tls]\ncertifcate = \"x\"",
                "test.toml:2: tls.certifcate is not known; known are authority, certificate, key, "
                "revoked"},
        Mistake{"UnknownTable", "[cruiser]\nx = 1", "test.toml:1: cruiser is not known"},
        Mistake{"WrongType", "lanes = \"four\"", "lanes must be a number from 0 to 32"},
        Mistake{"SizeTooSmall", "landing_window = \"63 MiB\"",
                "landing_window must be a size from \"64 MiB\" to \"1 TiB\""},
        Mistake{"SizeTooLarge", "landing_window = \"1025 GiB\"", "landing_window must be a size"},
        Mistake{"SizeOfManyDigits", "landing_window = \"18446744073709551617 GiB\"",
                "landing_window must be a size"},
        Mistake{"SizeWithoutUnit", "landing_window = \"4\"", "landing_window must be a size"},
        Mistake{"SizeWithoutNumber", "landing_window = \" GiB\"", "landing_window must be a size"},
        Mistake{"SizeAsNumber", "landing_window = 4294967296", "landing_window must be a size"},
        Mistake{"NotAFlag", "unencrypted_data = 1", "unencrypted_data must be true or false"},
        Mistake{"NotAnInteger", "lanes = 2.5", "lanes must be a number from 0 to 32"},
        Mistake{"TooMany", "lanes = 33", "lanes must be a number from 0 to 32"},
        Mistake{"Negative", "max_startups = -1", "max_startups must be a number"},
        Mistake{"Listen", "listen = \"host:port\"", "a port is a number"},
        Mistake{"Advertise", "advertise = \"host:port\"", "a port is a number"},
        Mistake{"Impatient", "peer_silence_ms = 499", "must be a number from 500 to 3600000"},
        Mistake{"Hugepages", "hugepages = \"yes\"", "\"auto\", \"require\" or \"never\""},
        Mistake{"LogLevel", "log_level = \"loud\"", "\"debug\""},
        Mistake{"Gpu", "gpus = [\"0\"]", "not a GPU's UUID"},
        Mistake{"GpusNoArray", "gpus = \"GPU-1\"", "array of strings"},
        Mistake{"CommandOfNumbers", "[criu]\ncommand = [1]", "array of strings"},
        Mistake{"TableAsValue", "tls = 3", "must be a table: [tls]"},
        Mistake{"NoVariable", "[criu]\nplugin_environment = [\"=1\"]",
                "plugin_environment must have the form \"NAME=VALUE\""},
        Mistake{"SlurmNode", "[slurm]\nnode = \"a/b\"", "slurm.node must not contain \"/\""},
        Mistake{"SlurmSpool", "[slurm]\nspool = \"x\"", "slurm.spool must be an absolute path"},
        Mistake{"EmptyPath", "state_dir = \"\"", "state_dir must not be empty"}),
    [](const auto& info) { return info.param.name; });

/// The file that packages install, with its commented-out lines in force.
TEST(Config, ShippedFileNamesTheDefaults) {
  std::ifstream file(GCR_SHIPPED_CONFIG);
  std::string text;
  for (std::string line; std::getline(file, line);) {
    const bool is_operator =
        line.starts_with("#[[") || line.starts_with("#name") || line.starts_with("#users");
    if (!is_operator)
      text += (line.starts_with("#") && !line.starts_with("# ") ? line.substr(1) : line) + "\n";
  }
  const auto shipped = worker::parse_config(text, GCR_SHIPPED_CONFIG);
  ASSERT_TRUE(shipped) << shipped.error().message();
  const auto defaults = worker::parse_config("", "nothing");
  ASSERT_TRUE(defaults);
  EXPECT_EQ(shipped->listen.to_string(), defaults->listen.to_string());
  EXPECT_EQ(shipped->host, defaults->host);
  EXPECT_EQ(shipped->advertise, defaults->advertise);
  EXPECT_EQ(shipped->max_startups, defaults->max_startups);
  EXPECT_EQ(shipped->max_connections, defaults->max_connections);
  EXPECT_EQ(shipped->max_migrations, defaults->max_migrations);
  EXPECT_EQ(shipped->max_migrations_per_user, defaults->max_migrations_per_user);
  EXPECT_EQ(shipped->startup_timeout_ms, defaults->startup_timeout_ms);
  EXPECT_EQ(shipped->peer_silence_ms, defaults->peer_silence_ms);
  EXPECT_EQ(shipped->lanes, defaults->lanes);
  EXPECT_EQ(shipped->unencrypted_data, defaults->unencrypted_data);
  EXPECT_EQ(shipped->hugepages, defaults->hugepages);
  EXPECT_EQ(shipped->log_level, defaults->log_level);
  EXPECT_EQ(shipped->metrics_listen.has_value(), defaults->metrics_listen.has_value());
  EXPECT_EQ(shipped->local_socket, defaults->local_socket);
  EXPECT_EQ(shipped->audit_log, defaults->audit_log);
  EXPECT_EQ(shipped->sysfs, defaults->sysfs);
  EXPECT_EQ(shipped->state_dir, defaults->state_dir);
  EXPECT_EQ(shipped->runtime_dir, defaults->runtime_dir);
  EXPECT_EQ(shipped->tls.authority, defaults->tls.authority);
  EXPECT_EQ(shipped->tls.certificate, defaults->tls.certificate);
  EXPECT_EQ(shipped->tls.key, defaults->tls.key);
  EXPECT_EQ(shipped->tls.revoked, defaults->tls.revoked);
  EXPECT_EQ(shipped->criu.argv, defaults->criu.argv);
  EXPECT_EQ(shipped->criu.reaper, defaults->criu.reaper);
  EXPECT_EQ(shipped->criu.plugins, defaults->criu.plugins);
  EXPECT_EQ(shipped->criu.plugin_environment, defaults->criu.plugin_environment);
  EXPECT_EQ(shipped->slurm.node, defaults->slurm.node);
  EXPECT_EQ(shipped->slurm.spool, defaults->slurm.spool);
  EXPECT_EQ(shipped->slurm.library, defaults->slurm.library);
  EXPECT_EQ(shipped->slurm.folder, defaults->slurm.folder);
  EXPECT_TRUE(shipped->operators.empty());
  EXPECT_TRUE(shipped->peers.empty());
}

TEST(Config, PeersAcceptOnlyAName) {
  const auto config =
      worker::parse_config("[[peers]]\nname = \"a\"\n[[peers]]\nname = \"b\"\n", "test.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->peers, (std::vector<std::string>{"a", "b"}));
  for (const char* wrong : {"[[peers]]\n", "[[peers]]\nname = \"\"\n", "peers = [\"a\"]\n",
                            "[[peers]]\nname = \"a\"\nusers = []\n"}) {
    EXPECT_FALSE(worker::parse_config(wrong, "test.toml")) << wrong;
  }
}

TEST(Config, OperatorsAcceptNoOtherKeys) {
  const auto config =
      worker::parse_config("[[operators]]\nname = \"a\"\nuser = [\"b\"]\n", "test.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message(),
            "test.toml:3: operators.user is not known; known are name, users");
}

TEST(Config, MissingFileIsNamed) {
  const auto config = worker::load_config("/nonexistent/agent.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), Code::kNotFound);
  EXPECT_THAT(config.error().message(), HasSubstr("/nonexistent/agent.toml"));
}

}  // namespace
}  // namespace gcr::daemon

// The configuration of gcr-runtime.
#include "container/runtime_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace gcr::container {
namespace {

std::string error_in(const std::string& text) {
  const auto config = parse_runtime_config(text, "f");
  return config ? "" : config.error().message();
}

TEST(RuntimeConfig, MissingFileMeansDefaults) {
  const auto config = load_runtime_config("/absent/runtime.toml");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->state, "/var/lib/gcr-migrate/received");
  EXPECT_TRUE(config->allow_userfaultfd);
  EXPECT_TRUE(config->runtime.empty() && config->log.empty());
}

TEST(RuntimeConfig, EveryKeyIsRead) {
  const auto config = parse_runtime_config(
      "runtime = '/r'\ninit = '/i'\nlibrary = '/l'\nlog = '/g'\nstate = '/s'\nallow_userfaultfd = "
      "false",
      "f");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->runtime, "/r");
  EXPECT_EQ(config->init, "/i");
  EXPECT_EQ(config->library, "/l");
  EXPECT_EQ(config->log, "/g");
  EXPECT_EQ(config->state, "/s");
  EXPECT_FALSE(config->allow_userfaultfd);
}

TEST(RuntimeConfig, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(error_in("\nruntime = 1"), "f:2: runtime must be an absolute path, or empty");
  EXPECT_EQ(error_in("runtime = 'runc'"), "f:1: runtime must be an absolute path, or empty");
  EXPECT_EQ(error_in("state = ''"), "f:1: state must be an absolute path");
  EXPECT_EQ(error_in("allow_userfaultfd = 'no'"), "f:1: allow_userfaultfd must be true or false");
  EXPECT_TRUE(
      error_in("other = 1").starts_with("f:1: other is not known; known are allow_userfaultfd"));
  EXPECT_TRUE(error_in("= 1").starts_with("f:1: "));
}

TEST(RuntimeConfig, ShippedFileHasEveryKeyWithItsDefault) {
  std::ifstream file(GCR_SHIPPED_CONFIG);
  std::ostringstream text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") && line.find(" = ") != std::string::npos)
      text << line.substr(1) << "\n";
  }
  const auto config = parse_runtime_config(text.str(), "f");
  ASSERT_TRUE(config) << config.error().message();
  const RuntimeConfig defaults;
  EXPECT_EQ(config->runtime, defaults.runtime);
  EXPECT_EQ(config->state, defaults.state);
  EXPECT_EQ(config->allow_userfaultfd, defaults.allow_userfaultfd);
  for (const char* key : {"runtime", "init", "library", "log", "state", "allow_userfaultfd"}) {
    EXPECT_NE(("\n" + text.str()).find("\n" + std::string(key) + " = "), std::string::npos) << key;
  }
}

TEST(RuntimeConfig, MissingProgramIsNamedWithItsKey) {
  RuntimeConfig config;
  config.init = "/absent";
  EXPECT_EQ(find_init(config).error().message(),
            "cannot find init: not a file: /absent; set `init` in /etc/gcr-migrate/runtime.toml");
}

}  // namespace
}  // namespace gcr::container

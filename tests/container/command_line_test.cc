// Command lines of OCI runtimes, as engines write them.
#include "container/command_line.h"

#include <gtest/gtest.h>

namespace gcr::container {
namespace {

using Words = std::vector<std::string>;

TEST(CommandLine, PodmansIsRead) {
  const auto line =
      parse_command_line({"--log-format=json", "--log", "/l", "create", "--bundle", "/b",
                          "--pid-file", "/p", "--console-socket", "create", "id"});
  EXPECT_TRUE(line.creates());
  EXPECT_EQ(line.spec_path(), "/b/config.json");
  EXPECT_EQ(line.log, "/l");
  EXPECT_TRUE(line.json_log);
  EXPECT_EQ(line.pid_file, "/p");
  EXPECT_EQ(line.container, "id");
}

TEST(CommandLine, ContainerdsIsRead) {
  const auto line = parse_command_line({"--root", "/run/runc/k8s.io", "--log", "/b/log.json",
                                        "--log-format", "json", "--systemd-cgroup", "create",
                                        "--bundle", "/b", "--pid-file", "/b/init.pid", "id"});
  EXPECT_EQ(line.bundle, "/b");
  EXPECT_TRUE(line.json_log);
  EXPECT_EQ(line.container, "id");
}

TEST(CommandLine, ValuesAreNoVerbs) {
  EXPECT_EQ(parse_command_line({"--root", "create", "delete", "run"}).verb(), "delete");
  EXPECT_FALSE(parse_command_line({"exec", "id", "create"}).creates());
  EXPECT_FALSE(parse_command_line({"--log", "run"}).creates());
}

TEST(CommandLine, UnknownGlobalOptionMayHaveAValue) {
  EXPECT_EQ(parse_command_line({"--odd", "value", "create", "id"}).verb(), "create");
  EXPECT_EQ(parse_command_line({"--odd=value", "create", "id"}).verb(), "create");
}

TEST(CommandLine, OptionsMayFollowTheId) {
  const auto line = parse_command_line({"run", "id", "-d", "-b", "/b", "--config=/c.json"});
  EXPECT_EQ(line.container, "id");
  EXPECT_TRUE(line.detach);
  EXPECT_EQ(line.spec_path(), "/c.json");
}

TEST(CommandLine, WordsAfterTheEndOfOptionsAreNoOptions) {
  const auto line = parse_command_line({"create", "--bundle", "/b", "--", "--bundle=x"});
  EXPECT_EQ(line.bundle, "/b");
  EXPECT_EQ(line.container, "--bundle=x");
}

TEST(CommandLine, MissingValuesAreNoError) {
  EXPECT_EQ(parse_command_line({"create", "--bundle"}).bundle, "");
  EXPECT_EQ(parse_command_line({}).verb(), "");
  EXPECT_EQ(parse_command_line({"--log"}).log, "");
}

TEST(CommandLine, DeletionHasTheSameGlobalOptions) {
  EXPECT_EQ(parse_command_line({"--root", "/r", "create", "-b", "/b", "id"}).deletion(),
            (Words{"--root", "/r", "delete", "--force", "id"}));
}

TEST(CommandLine, PidFileIsAddedAfterTheVerb) {
  auto line = parse_command_line({"--root", "/r", "create", "id"});
  line.add_pid_file("/p");
  EXPECT_EQ(line.words, (Words{"--root", "/r", "create", "--pid-file", "/p", "id"}));
  EXPECT_EQ(line.pid_file, "/p");
}

}  // namespace
}  // namespace gcr::container

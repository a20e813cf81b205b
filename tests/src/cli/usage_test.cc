// Wrong command lines, and the certificates that scripts/make-certs makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "tests/src/cli/fake_agent.h"
#include "tests/src/cli/process.h"

namespace gcr::cli::test {
namespace {

using testing::HasSubstr;

struct Wrong {
  const char* name;
  std::vector<std::string> arguments;
  const char* says;
};

class Usage : public testing::TestWithParam<Wrong> {};

TEST_P(Usage, IsRefusedInOneLine) {
  const Finished finished = run_cli(GetParam().arguments);
  EXPECT_EQ(finished.exit_status, 2) << finished.err;
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr(GetParam().says));
  EXPECT_EQ(finished.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Wrong, Usage,
    testing::Values(
        Wrong{"Nothing", {}, "SRC, DST and PID are needed"},
        Wrong{"NoPid", {"a", "b"}, "SRC, DST and PID are needed"},
        Wrong{"PidIsAWord", {"a", "b", "x"}, "not \"x\""},
        Wrong{"PidIsNegative", {"a", "b", "-1"}, "not \"-1\""},
        Wrong{"PidIsZero", {"a", "b", "0"}, "not \"0\""},
        Wrong{"PidIsHuge", {"a", "b", "4294967297"}, "above 0"},
        Wrong{"PidHasMore", {"a", "b", "12x"}, "not \"12x\""},
        Wrong{"TooMuch", {"a", "b", "1", "2"}, "not expected"},
        Wrong{"UnknownOption", {"--fast", "a", "b", "1"}, "--fast"},
        Wrong{"BadPort", {"a:port", "b", "1"}, "a port is a number"},
        Wrong{"BadDestination", {"a", "", "1"}, "SRC, DST and PID are needed"},
        Wrong{"TooManyLanes", {"--lanes", "33", "a", "b", "1"}, "--lanes"},
        Wrong{"NoDowntime", {"--downtime-limit", "0", "a", "b", "1"}, "--downtime-limit"},
        Wrong{"NoRounds", {"--max-rounds", "0", "a", "b", "1"}, "--max-rounds"},
        Wrong{"NegativeRate", {"--max-bandwidth", "-1G", "a", "b", "1"}, "--max-bandwidth"},
        Wrong{"RateOfNoUnit", {"--max-bandwidth", "3X", "a", "b", "1"}, "--max-bandwidth"},
        Wrong{"HugeRate", {"--max-bandwidth", "99999E", "a", "b", "1"}, "--max-bandwidth"},
        Wrong{"NoSuchCompression", {"--compression", "gzip", "a", "b", "1"}, "gzip"},
        Wrong{"NoSuchImageMode", {"--image-mode", "twice", "a", "b", "1"}, "twice"},
        Wrong{"NoSuchCertificate",
              {"--ca", "/nonexistent/ca.crt", "a", "b", "1"},
              "/nonexistent/ca.crt"},
        Wrong{"DetachWithATrace", {"--detach", "--trace", "/tmp/t", "a", "b", "1"}, "--trace"},
        Wrong{"CancelNothing", {"cancel", "a"}, "ID"},
        Wrong{"CancelShortId", {"cancel", "a", "6f1c2d3"}, "at least 8 characters"},
        Wrong{"StatusOfAWord", {"status", "a", "yesterday"}, "not \"yesterday\""},
        Wrong{"ListTooMuch", {"list", "a", "b"}, "not expected"},
        Wrong{"ListWithoutAgent", {"list"}, "AGENT"},
        Wrong{"ResolveUndecided",
              {"resolve", "a", "6f1c2d3e", "--peer-is-gone"},
              "--run-here or --discard-here"},
        Wrong{"ResolveBoth",
              {"resolve", "a", "6f1c2d3e", "--run-here", "--discard-here", "--peer-is-gone"},
              "excludes"},
        Wrong{"ResolveWithoutVouching",
              {"resolve", "a", "6f1c2d3e", "--run-here"},
              "resolve needs --peer-is-gone"},
        Wrong{"SetNothing", {"set", "a", "6f1c2d3e"}, "--max-bandwidth or --downtime-limit"},
        Wrong{"SetNoRate", {"set", "a", "6f1c2d3e", "--max-bandwidth", "fast"}, "fast"},
        Wrong{"SetNoTime", {"set", "a", "6f1c2d3e", "--downtime-limit", "0"}, "--downtime-limit"},
        Wrong{"ContinueNothing", {"continue", "a"}, "ID"},
        Wrong{"CheckpointNowhere", {"checkpoint", "a", "1"}, "DIR"},
        Wrong{"CheckpointRelative", {"checkpoint", "a", "1", "d"}, "so its path begins with /"},
        Wrong{"CheckpointOfAWord", {"checkpoint", "a", "x", "/d"}, "not \"x\""},
        Wrong{"CheckpointKeepNone", {"checkpoint", "a", "1", "/d", "--keep", "0"}, "--keep"},
        Wrong{"CheckpointOfNoName",
              {"checkpoint", "a", "1", "/d", "--name", "../n"},
              "\"../n\" is not one"},
        Wrong{"RestoreOfNoName", {"restore", "a", "/d", ".n"}, "\".n\" is not one"},
        Wrong{"ContainerWithoutKey",
              {"restore", "a", "/d", "--container", "4711"},
              "\"4711\" is not PID:KEY"},
        Wrong{"PruneKeepNone", {"prune", "/d", "--keep", "0"}, "--keep"},
        Wrong{"EveryWithoutUnit", {"checkpoint", "a", "1", "/d", "--every", "10"}, "--every"},
        Wrong{"EveryNothing", {"checkpoint", "a", "1", "/d", "--every", "0s"}, "--every"},
        Wrong{"EveryDay", {"checkpoint", "a", "1", "/d", "--every", "1d"}, "--every"},
        Wrong{"EveryHasNoName",
              {"checkpoint", "a", "1", "/d", "--every", "1h", "--name", "n"},
              "excludes"},
        Wrong{"EveryDoesNotStop",
              {"checkpoint", "a", "1", "/d", "--every", "1h", "--stop"},
              "excludes"},
        Wrong{
            "EveryStays", {"checkpoint", "a", "1", "/d", "--every", "1h", "--detach"}, "excludes"},
        Wrong{"RestoreNothing", {"restore", "a"}, "DIR"},
        Wrong{"RestoreRelative", {"restore", "a", "./d"}, "so its path begins with /"},
        Wrong{"PreflightTwoPlaces",
              {"preflight", "a", "b", "1", "--checkpoint", "/d"},
              "there is no DST"},
        Wrong{"PreflightRelative",
              {"preflight", "a", "1", "--checkpoint", "d"},
              "so its path begins with /"},
        Wrong{"TimelineOfNothing", {"timeline"}, "REPORT"},
        Wrong{"TimelineOfNoFile", {"timeline", "/nonexistent/report"}, "No such file"},
        Wrong{
            "TimelineOfNoReport", {"timeline", "/dev/null"}, "not a report of gcr-migrate --json"},
        Wrong{"RunNothing", {"run"}, "run needs a command"},
        Wrong{"RunMarkOnly", {"run", "--"}, "run needs a command"}),
    [](const auto& info) { return info.param.name; });

/// From --help of a command, or of none: its long options, and whether they take a value.
std::map<std::string, bool> options_of(const std::string& command) {
  std::vector<std::string> words{"--help"};
  if (!command.empty()) words.insert(words.begin(), command);
  const std::string help = run_cli(words).out;
  const std::regex row("\n  (--[a-z-]+) (Excludes:|Needs:|[^ ])?");
  std::map<std::string, bool> options;
  for (std::sregex_iterator at(help.begin(), help.end(), row), end; at != end; ++at) {
    options[(*at)[1]] = (*at)[2].length() == 1;
  }
  return options;
}

/// All commands except those whose options are the options of gcr-slurm, gcr-container and
/// gcr-turns.
std::vector<std::string> commands() {
  const std::string help = run_cli({"--help"}).out;
  const std::regex row("\n  ([a-z]+) +gcr-migrate ");
  std::vector<std::string> names;
  for (std::sregex_iterator at(help.begin(), help.end(), row), end; at != end; ++at) {
    const std::string name = (*at)[1];
    if (name != "slurm" && name != "container" && name != "turns") names.push_back(name);
  }
  return names;
}

/// Iterates over each command and each of its options that `of` returns, but not all pairs of them.
template <class Of, class Try>
void try_each(Of of, Try attempt) {
  std::set<std::string> tried;
  for (const std::string& command : commands()) {
    bool any = false;
    for (const auto& [option, takes_value] : of(command)) {
      if (!tried.insert(option).second && any) continue;
      any = true;
      attempt(command, option, takes_value);
    }
  }
}

TEST(OptionsBeforeTheCommand, AreTreatedAsThoseAfterIt) {
  unsigned noticed = 0;
  try_each(options_of,
           [&](const std::string& command, const std::string& option, bool takes_value) {
             // A flag is no word; no value is a file or a number.
             const std::string word = option + (takes_value ? "=/nonexistent/x" : "=word");
             const Finished before = run_cli({word, command, "127.0.0.1:1", "1234567890"});
             const Finished after = run_cli({command, word, "127.0.0.1:1", "1234567890"});
             EXPECT_EQ(before.exit_status, after.exit_status) << word << " " << command;
             EXPECT_EQ(before.err, after.err) << word << " " << command;
             noticed += before.err.find(option) != before.err.npos;
           });
  EXPECT_GT(noticed, 20u);
}

TEST(OptionsBeforeTheCommand, AreRefusedIfUnknownToTheCommand) {
  const auto migrations = options_of("");
  ASSERT_GT(migrations.size(), 20u);
  ASSERT_GT(commands().size(), 15u);
  const auto unknown_to = [&](const std::string& command) {
    auto unknown = migrations;
    for (const auto& [option, takes_value] : options_of(command)) unknown.erase(option);
    return unknown;
  };
  try_each(unknown_to, [](const std::string& command, const std::string& option, bool takes_value) {
    std::vector<std::string> words{option, command};
    if (takes_value) words.insert(words.begin() + 1, "x");
    const Finished refused = run_cli(words);
    EXPECT_EQ(refused.exit_status, 2) << option << " " << command;
    EXPECT_THAT(refused.err, HasSubstr(command + " has no option " + option));
  });
}

TEST(OptionsBeforeTheCommand, MayBeSpecificToTheCommand) {
  const Finished finished = run_cli({"--keep", "0", "prune", "/d"});
  EXPECT_THAT(finished.err, HasSubstr("--keep"));
}

TEST(OptionsBeforeTheCommand, MayHaveACommandNameAsValue) {
  const Finished finished = run_cli({"--ca", "list", "status", "a", "short"});
  EXPECT_THAT(finished.err, HasSubstr("at least 8 characters"));
}

TEST(OptionsBeforeTheCommand, BelongToRunBeforeItsCommand) {
  const Finished finished = run_cli({"--output", "/nonexistent/log", "run", "--", "/bin/true"});
  EXPECT_THAT(finished.err, HasSubstr("/nonexistent/log"));
}

TEST(Host, MayHaveTheNameOfACommand) {
  EXPECT_THAT(run_cli({"node1", "list", "x"}).err, HasSubstr("PID is a number"));
  EXPECT_THAT(run_cli({"list", "host", "status"}).err, HasSubstr("status"));
  EXPECT_THAT(run_cli({"status", "list", "short"}).err, HasSubstr("at least 8 characters"));
}

TEST(Help, PrintsTheVersion) {
  EXPECT_THAT(run_cli({"--version"}).out, testing::StartsWith("gcr-migrate 0.1.0 ("));
}

class MakeCerts : public testing::Test {
 protected:
  MakeCerts() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gcr-certs-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
  }
  ~MakeCerts() override { std::filesystem::remove_all(folder_); }

  Finished make(std::vector<std::string> arguments) {
    std::vector<std::string> words = {GCR_MAKE_CERTS, "--dir", folder_};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run(words, {"PATH=/usr/bin:/bin"});
  }

  control::TlsFiles files(const std::string& name) const {
    return {folder_ + "/ca.crt", folder_ + "/" + name + ".crt", folder_ + "/" + name + ".key"};
  }

  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(MakeCerts, AgentsAndOperatorsCanConnect) {
  ASSERT_EQ(make({"--agent", "node1,127.0.0.1", "--operator", "alice"}).exit_status, 0);
  control::test::Loopback loopback;
  const auto agent = control::make_tls_context(files("node1"));
  const auto human = control::make_tls_context(files("alice"));
  ASSERT_TRUE(agent && human);
  const auto [server, client] = loopback.connect_both(*agent, *human);
  ASSERT_TRUE(server) << server.error().message();
  ASSERT_TRUE(client) << client.error().message();
  EXPECT_TRUE((*server)->peer().is_operator);
  EXPECT_FALSE((*server)->peer().is_agent);
  EXPECT_TRUE((*client)->peer().is_agent);
}

TEST_F(MakeCerts, AgentIsRefusedUnderAnUnnamedAddress) {
  ASSERT_EQ(make({"--agent", "node1", "--operator", "alice"}).exit_status, 0);
  control::test::Loopback loopback;
  const auto agent = control::make_tls_context(files("node1"));
  const auto human = control::make_tls_context(files("alice"));
  ASSERT_TRUE(agent && human);
  const auto [server, client] = loopback.connect_both(*agent, *human);
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message(), HasSubstr("made out to another host"));
}

TEST_F(MakeCerts, SecondRunChangesOnlyWhatIsNew) {
  ASSERT_EQ(make({"--agent", "a", "--agent", "b"}).exit_status, 0);
  const std::string authority = content("ca.crt"), a = content("a.crt"), b = content("b.crt");
  ASSERT_EQ(make({"--agent", "a", "--agent", "b"}).out, "");
  EXPECT_EQ(content("a.crt"), a);
  ASSERT_EQ(make({"--agent", "a,10.0.0.1", "--agent", "b"}).exit_status, 0);
  EXPECT_EQ(content("ca.crt"), authority);
  EXPECT_NE(content("a.crt"), a);
  EXPECT_EQ(content("b.crt"), b);
}

TEST_F(MakeCerts, KeysAreReadableByTheOwnerOnly) {
  ASSERT_EQ(make({"--agent", "a", "--operator", "o"}).exit_status, 0);
  for (const char* key : {"ca.key", "a.key", "o.key"}) {
    struct stat info {};
    ASSERT_EQ(::stat((folder_ + "/" + key).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U) << key;
  }
}

TEST_F(MakeCerts, WrongArgumentsAreUsageErrors) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--agent", "../a"},
                                                                     {"--agent", "ca"},
                                                                     {"--agent", "a,b c"},
                                                                     {"--operator"},
                                                                     {"alice"}}) {
    EXPECT_EQ(make(arguments).exit_status, 2);
  }
}

}  // namespace
}  // namespace gcr::cli::test

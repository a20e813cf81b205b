// The catalogue, its documentation and the tests belong together.
#include "migrate-agent/base/findings/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

namespace gcr::findings {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// All sources below these folders of the repository.
std::string sources(const std::vector<std::string>& folders) {
  std::string text;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(GCR_SOURCE_DIR) / folder)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".cc" && path.filename() != "catalogue.cc" &&
          path.filename() != "catalogue_test.cc") {
        text += read(path);
      }
    }
  }
  return text;
}

std::set<std::string> catalogue_ids() {
  std::set<std::string> ids;
  for (const Kind& kind : catalogue()) ids.emplace(kind.id);
  return ids;
}

TEST(Catalogue, IdentifiersAreUniqueAndSentencesAreSentences) {
  EXPECT_EQ(catalogue_ids().size(), catalogue().size());
  for (const Kind& kind : catalogue()) {
    EXPECT_TRUE(std::regex_match(std::string(kind.id), std::regex("[a-z]+(-[a-z]+)*"))) << kind.id;
    EXPECT_TRUE(kind.why.ends_with('.')) << kind.id;
    EXPECT_TRUE(kind.remedy.ends_with('.')) << kind.id;
  }
}

TEST(Catalogue, ThePageHasTheSameTable) {
  std::string expected = "| id | | why it matters | what to do |\n| --- | --- | --- | --- |\n";
  for (const Kind& kind : catalogue()) {
    const bool blocker = kind.severity == proto::Finding::BLOCKER;
    expected += "| `" + std::string(kind.id) + "` | " + (blocker ? "blocker" : "warning") + " | " +
                std::string(kind.why) + " | " + std::string(kind.remedy) + " |\n";
  }
  EXPECT_THAT(read(GCR_SOURCE_DIR "/docs/preflight.md"), HasSubstr(expected));
}

TEST(Catalogue, ThePageHasTheRemediesOfDevices) {
  std::string expected = "| name begins with | what to do |\n| --- | --- |\n";
  for (const ObjectRemedy& one : object_remedies()) {
    EXPECT_TRUE(one.remedy.ends_with('.')) << one.name;
    expected += "| `" + std::string(one.name) + "` | " + std::string(one.remedy) + " |\n";
  }
  EXPECT_THAT(read(GCR_SOURCE_DIR "/docs/preflight.md"), HasSubstr(expected));
}

TEST(Catalogue, EveryFindingThatTheAgentMakesIsInItAndNoOther) {
  const std::string agent = sources({"migrate-agent"});
  for (const std::string& id : catalogue_ids()) {
    EXPECT_NE(agent.find('"' + id + '"'), agent.npos) << "nobody finds " << id;
  }
  const std::regex call("(?:findings\\.add(?:_object)?|make_finding)\\(\\s*\"([^\"]+)\"");
  for (std::sregex_iterator at(agent.begin(), agent.end(), call), end; at != end; ++at) {
    EXPECT_TRUE(catalogue_ids().contains((*at)[1])) << (*at)[1];
  }
}

TEST(Product, DoesNotKnowTheGpuThatItIsTestedOn) {
  const std::string product = sources({"migrate-agent", "preload", "transport", "src"});
  EXPECT_EQ(product.find("softgpu"), product.npos);
}

TEST(Catalogue, EveryFindingIsProvokedInATest) {
  const std::string tests = sources({"tests/preflight", "tests/process", "tests/e2e"});
  for (const std::string& id : catalogue_ids()) {
    EXPECT_NE(tests.find('"' + id + '"'), tests.npos) << "no test names " << id;
  }
}

TEST(Findings, ARefusalNamesTheBlockersAndWarningsAreNotes) {
  Findings findings(Side::kDestination);
  findings.add("stopped", "it is stopped");
  EXPECT_FALSE(findings.has_blocker());
  EXPECT_EQ(reason_of(findings.list()), "");
  findings.add("terminal", "standard input is a terminal");
  findings.add("device", "descriptor 5 is a device");
  EXPECT_TRUE(findings.has_blocker());
  EXPECT_EQ(reason_of(findings.list()),
            "standard input is a terminal [terminal]; descriptor 5 is a device [device]");
  EXPECT_EQ(note_of(findings.list()[0]), "it is stopped [stopped]");
  EXPECT_EQ(findings.list()[0].host(), "destination");
}

TEST(Findings, SomeDevicesHaveRemediesOfTheirOwn) {
  const auto remedy_of = [](std::string_view id, std::string_view name) {
    Findings findings(Side::kSource);
    findings.add_object(id, "found", name);
    return findings.list().at(0).remedy();
  };
  EXPECT_THAT(remedy_of("device", "/dev/infiniband/uverbs0"), HasSubstr("NCCL_IB_DISABLE=1"));
  EXPECT_THAT(remedy_of("device", "/dev/infiniband/rdma_cm"), HasSubstr("UCX_TLS=^ib "));
  EXPECT_THAT(remedy_of("kernel-object", "anon_inode:[infinibandevent]"),
              HasSubstr("NCCL_IB_DISABLE=1"));
  EXPECT_THAT(remedy_of("device", "/dev/gdrdrv"), HasSubstr("NCCL_GDRCOPY_ENABLE=0"));
  const auto device = std::ranges::find(catalogue(), std::string_view("device"), &Kind::id);
  EXPECT_EQ(remedy_of("device", "/dev/kmsg"), device->remedy);
  EXPECT_EQ(remedy_of("device", "/dev/infiniband"), device->remedy);
}

TEST(Findings, OfOneKindThereAreNotMoreThanAMessageHolds) {
  Findings findings(Side::kDestination);
  for (int file = 0; file < 100'000; ++file)
    findings.add("file-missing", "file " + std::to_string(file) + " is missing");

  findings.add("terminal", "a terminal");
  ASSERT_EQ(findings.list().size(), 65u);
  EXPECT_THAT(findings.list()[63].found(), HasSubstr("there are more"));
}

TEST(Findings, ASeverityThatNobodyKnowsIsABlocker) { EXPECT_TRUE(is_blocker(proto::Finding())); }

TEST(Findings, AnIdentifierThatIsNotThereIsAMistake) {
  EXPECT_THROW(make_finding("no-such-id", Side::kSource, ""), std::logic_error);
}

/// Each member of a job may have it.
TEST(Findings, AreThereOnce) {
  Findings all(Side::kDestination);
  for (int member = 0; member < 2; ++member) {
    Findings findings(Side::kDestination);
    for (const char* const found : {"first", "first", "second"}) findings.add("clock-skew", found);
    all.take(findings.release());
  }
  all.add("clock-skew", "first");
  all.add("cpu-affinity", "first");
  ASSERT_EQ(all.list().size(), 3u);
}

}  // namespace
}  // namespace gcr::findings

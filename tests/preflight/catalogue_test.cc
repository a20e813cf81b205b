// The catalogue, its documentation and the tests must match.
#include "migrate-agent/base/findings/catalogue.h"

#include <fmt/format.h>
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
      const bool is_source = path.extension() == ".cc" || path.extension() == ".py";
      if (is_source && path.filename() != "catalogue.cc" &&
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

TEST(Catalogue, IdentifiersAreUniqueAndTextsAreSentences) {
  EXPECT_EQ(catalogue_ids().size(), catalogue().size());
  for (const Kind& kind : catalogue()) {
    EXPECT_TRUE(std::regex_match(std::string(kind.id), std::regex("[a-z]+(-[a-z]+)*"))) << kind.id;
    EXPECT_TRUE(kind.why.ends_with('.')) << kind.id;
    EXPECT_TRUE(kind.remedy.ends_with('.')) << kind.id;
  }
}

TEST(Catalogue, DocumentHasTheSameTable) {
  std::string expected =
      "| id | | found by | why it matters | what to do |\n| --- | --- | --- | --- | --- |\n";
  constexpr const char* kSides[] = {"source", "destination"};
  for (const Kind& kind : catalogue()) {
    const bool blocker = kind.severity == proto::Finding::BLOCKER;
    expected += fmt::format(
        "| `{}` | {} | {} | {} | {} |\n", kind.id, blocker ? "blocker" : "warning",
        kind.side ? kSides[static_cast<int>(*kind.side)] : "either", kind.why, kind.remedy);
  }
  EXPECT_THAT(read(GCR_SOURCE_DIR "/docs/preflight.md"), HasSubstr(expected));
}

TEST(Catalogue, DocumentHasTheRemediesOfDevices) {
  std::string expected = "| name begins with | what to do |\n| --- | --- |\n";
  for (const ObjectRemedy& one : object_remedies()) {
    EXPECT_TRUE(one.remedy.ends_with('.')) << one.name;
    expected += "| `" + std::string(one.name) + "` | " + std::string(one.remedy) + " |\n";
  }
  EXPECT_THAT(read(GCR_SOURCE_DIR "/docs/preflight.md"), HasSubstr(expected));
}

TEST(Catalogue, AgentReportsEveryFinding) {
  const std::string agent = sources({"migrate-agent"});
  std::ifstream table(GCR_SOURCE_DIR "/migrate-agent/base/findings/catalogue.def");
  std::set<std::string> names;
  for (std::string line; std::getline(table, line);) {
    std::smatch name;
    if (std::regex_search(line, name, std::regex("^GCR_FINDING\\((k\\w+),"))) names.insert(name[1]);
  }
  EXPECT_EQ(names.size(), catalogue().size());
  for (const std::string& name : names) {
    EXPECT_TRUE(std::regex_search(agent, std::regex("findings::" + name + "\\b"))) << name;
  }
}

TEST(Product, HasNoSpecialCaseForTheTestGpu) {
  const std::string product = sources({"migrate-agent", "preload", "transport", "src"});
  EXPECT_EQ(product.find("softgpu"), product.npos);
}

TEST(Catalogue, EveryFindingHasATest) {
  const std::string tests = sources({"tests/preflight", "tests/process/inspect", "tests/e2e"});
  for (const std::string& id : catalogue_ids()) {
    EXPECT_NE(tests.find('"' + id + '"'), tests.npos) << "no test names " << id;
  }
}

TEST(Findings, RefusalNamesTheBlockersAndWarningsAreNotes) {
  Findings findings(Side::kSource);
  findings.add(kStopped, "it is stopped");
  EXPECT_FALSE(findings.has_blocker());
  EXPECT_EQ(reason_of(findings.list()), "");
  findings.add(kTerminal, "standard input is a terminal");
  findings.add(kDevice, "descriptor 5 is a device");
  EXPECT_TRUE(findings.has_blocker());
  EXPECT_EQ(reason_of(findings.list()),
            "standard input is a terminal [terminal]; descriptor 5 is a device [device]");
  EXPECT_EQ(note_of(findings.list()[0]), "it is stopped [stopped]");
  EXPECT_EQ(findings.list()[0].host(), "source");
}

TEST(Findings, SomeDevicesHaveTheirOwnRemedies) {
  const auto remedy_of = [](Id id, std::string_view name) {
    Findings findings(Side::kSource);
    findings.add_object(id, "found", name);
    return findings.list().at(0).remedy();
  };
  EXPECT_THAT(remedy_of(kDevice, "/dev/infiniband/uverbs0"), HasSubstr("NCCL_IB_DISABLE=1"));
  EXPECT_THAT(remedy_of(kDevice, "/dev/infiniband/rdma_cm"), HasSubstr("UCX_TLS=^ib "));
  EXPECT_THAT(remedy_of(kKernelObject, "anon_inode:[infinibandevent]"),
              HasSubstr("NCCL_IB_DISABLE=1"));
  EXPECT_THAT(remedy_of(kDevice, "/dev/gdrdrv"), HasSubstr("NCCL_GDRCOPY_ENABLE=0"));
  EXPECT_EQ(remedy_of(kDevice, "/dev/kmsg"), kind_of(kDevice).remedy);
  EXPECT_EQ(remedy_of(kDevice, "/dev/infiniband"), kind_of(kDevice).remedy);
}

TEST(Findings, NumberOfOneKindIsLimitedByTheMessage) {
  Findings findings(Side::kDestination);
  for (int file = 0; file < 100'000; ++file)
    findings.add(kFileMissing, "file " + std::to_string(file) + " is missing");

  findings.add(kClockSkew, "a clock");
  ASSERT_EQ(findings.list().size(), 65u);
  EXPECT_THAT(findings.list()[63].found(), HasSubstr("there are more"));
}

TEST(Findings, UnknownSeverityIsABlocker) { EXPECT_TRUE(is_blocker(proto::Finding())); }

/// Each member of a job may have it.
TEST(Findings, DuplicatesAreDropped) {
  Findings all(Side::kDestination);
  for (int member = 0; member < 2; ++member) {
    Findings findings(Side::kDestination);
    for (const char* const found : {"first", "first", "second"}) findings.add(kClockSkew, found);
    all.take(findings.release());
  }
  all.add(kClockSkew, "first");
  all.add(kFileMissing, "first");
  ASSERT_EQ(all.list().size(), 3u);
}

}  // namespace
}  // namespace gcr::findings

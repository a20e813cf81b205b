// The names in CRIU's images are those that the source's agent declares, for real programs:
// undeclared names are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class DumpedNames : public testing::TestWithParam<const char*> {
 protected:
  DumpedNames() { wait_for_progress(directory_.path() / "output", {}, 5); }

  /// The names in the images of a dump, and the kernel's names of the stopped process's files.
  void dump_and_look() {
    const auto report = dump(criu_command(), program_.pid(), directory_.make("images"));
    ASSERT_TRUE(report) << report.error().message();
    const auto names = images::file_names(directory_.path() / "images");
    ASSERT_TRUE(names) << names.error().message();
    names_ = *names;
    const auto files = process::named_files(program_.pid());
    ASSERT_TRUE(files) << files.error().message();
    proto::DumpedMember& member = *told_.Add();
    for (const process::NamedFile& file : *files) *member.add_named() = file.fact;
    *member.add_credentials() = report->front().rights;
    member.set_pid_in_namespace(program_.pid());
  }

  Directory directory_;
  Program program_{directory_.path() / "output", GetParam()};
  std::set<std::string> names_;
  process::DumpedMembers told_;
};

TEST_P(DumpedNames, AreAllListed) {
  ASSERT_NO_FATAL_FAILURE(dump_and_look());
  EXPECT_THAT(names_, Contains((directory_.path() / "output").string()));
  EXPECT_THAT(names_, Not(Contains((directory_.path() / "output.ghost").string())));
  const auto vetted = process::vet_files(names_, told_);
  EXPECT_TRUE(vetted) << vetted.error().message();
}

TEST_P(DumpedNames, RenamedFilesHaveTheirNewNames) {
  ASSERT_NO_FATAL_FAILURE(dump_and_look());
  const std::string output = directory_.path() / "output";
  const auto image = directory_.path() / "images" / images::kFilesImage;
  const auto content = images::read_file(image);
  ASSERT_TRUE(content);
  EXPECT_EQ(images::rename_files(*content, {})->size(), content->size());
  const auto renamed = images::rename_files(*content, {{output, "/renamed"}});
  ASSERT_TRUE(renamed) << renamed.error().message();
  ASSERT_TRUE(images::write_file(image, *renamed));
  const auto names = images::file_names(directory_.path() / "images");
  ASSERT_TRUE(names);
  names_.erase(output);
  names_.insert("/renamed");
  EXPECT_EQ(*names, names_);
  EXPECT_FALSE(images::rename_files(content->substr(0, content->size() - 1), {}));
}

TEST_P(DumpedNames, UndeclaredOnesAreRefused) {
  ASSERT_NO_FATAL_FAILURE(dump_and_look());
  const std::string output = directory_.path() / "output";
  auto& named = *told_[0].mutable_named();
  named.erase(std::remove_if(named.begin(), named.end(),
                             [&](const auto& file) { return file.path() == output; }),
              named.end());
  const auto vetted = process::vet_files(names_, told_);
  ASSERT_FALSE(vetted);
  EXPECT_THAT(vetted.error().message(), HasSubstr(output));
}

INSTANTIATE_TEST_SUITE_P(Each, DumpedNames, testing::Values("count", "ghost"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gcr::criu::test

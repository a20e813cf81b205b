// Programs with a library that the loader binds to the driver itself, bypassing the preload
// library.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kSome = 20;

App start_past_gate(TwoHosts& hosts, const std::vector<std::string>& how) {
  const char* const gpu = std::getenv("GCR_GPU");
  const bool hip = gpu != nullptr && std::string_view(gpu) == "soft-hip";
  std::vector<std::string> command = {hosts.program_path("past_gate"), how.front(),
                                      hip ? GCR_DEEP_CALLS_HIP : GCR_DEEP_CALLS_CUDA};
  command.insert(command.end(), how.begin() + 1, how.end());
  return hosts.start_app(Host::kA, command);
}

void expect_right(const App& app, unsigned value) {
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kSome)) << app.output();
  std::size_t step = 0;
  for (const std::string& line : app.lines()) {
    ASSERT_EQ(line, fmt::format("step {} result 0 value {}", step++, value));
  }
}

TEST(PastGate, DeepBoundLibraryMovesWithItsProgram) {
  TwoHosts hosts;
  const App app = start_past_gate(hosts, {"deep"});
  ASSERT_NO_FATAL_FAILURE(expect_right(app, 49));
  move_to_and_fro(hosts, app.pid(), moves_or(4), [&](Host, const MigrateOutcome& outcome) {
    ASSERT_TRUE(migrated(outcome));
    ASSERT_NO_FATAL_FAILURE(expect_right(app, 49));
  });
}

TEST(PastGate, PrivateDriverIsRefusedAndTheProgramRunsOn) {
  TwoHosts hosts;
  const App app = start_past_gate(hosts, {"namespace"});
  ASSERT_NO_FATAL_FAILURE(expect_right(app, 0));
  const auto names_it = AllOf(HasSubstr("past-gate"), HasSubstr("/lib"), HasSubstr(".so"));
  const MigrateOutcome outcome = hosts.migrate(Host::kA, app.pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit);
  EXPECT_THAT(outcome.err, names_it);
  const CommandResult suspended = hosts.order(Host::kA, {"suspend", std::to_string(app.pid())});
  EXPECT_EQ(suspended.exit_code, kRefusedExit) << suspended.out;
  EXPECT_THAT(suspended.err, names_it);
  expect_right(app, 0);
}

TEST(PastGate, DriverLoadedBehindTheGateEndsTheMigration) {
  TwoHosts hosts({"--fault-points", "true"});
  const std::string file = hosts.directory() + "/open";
  const App app = start_past_gate(hosts, {"namespace", file});
  ASSERT_NO_FATAL_FAILURE(expect_right(app, 0));
  std::ofstream(hosts.directory(Host::kA) + "/faults.new") << fmt::format(
      "source.gated run touch {0}; until [ -e {0}.opened ]; do sleep 0.01; done\n", file);
  fs::rename(hosts.directory(Host::kA) + "/faults.new", hosts.directory(Host::kA) + "/faults");
  const MigrateOutcome outcome = hosts.migrate(Host::kA, app.pid());
  EXPECT_TRUE(fs::exists(hosts.directory(Host::kA) + "/faults.hit"));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("detach the VRAM"), HasSubstr("second copy")));
  expect_right(app, 0);
}

}  // namespace
}  // namespace gcr::e2e

// Page-locked memory of the driver, to which the GPU writes past all page tables.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "migrate-agent/memory/present_pages.h"
#include "migrate-agent/process/files.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

constexpr std::uint64_t kPinned = 96 * kMiB;
constexpr std::size_t kSome = 3;

/// As the driver has made it, and not as CRIU makes it again.
bool has_memory_of_the_driver(pid_t pid) {
  return std::ranges::any_of(process::named_mappings(pid, "/dev/zero"), [](const auto& mapping) {
    return mapping.path == "/dev/zero" && mapping.shared;
  });
}

TEST(PinnedMemory, GoesInRoundsBesideCriuThereAndBack) {
  if (!process::can_scan_pages()) GTEST_SKIP() << "a kernel before 6.7";
  TwoHosts hosts;
  const App moved = start_pinned(hosts, Host::kA, kPinned, 20);
  pid_t pid = moved.pid();
  Host host = Host::kA;
  for (int move = 0; move < 3; ++move) {
    ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + kSome)) << moved.output();
    ASSERT_TRUE(has_memory_of_the_driver(pid));
    const MigrateReport outcome = hosts.migrate_for_report(host, pid, {});
    ASSERT_TRUE(outcome.exit_code == 0 && outcome.report.verified()) << outcome.err;
    const auto& report = outcome.report;
    EXPECT_EQ(report.image_mode(), "rounds");
    EXPECT_GE(report.early_image_bytes(), kPinned / 2);  // compressed
    EXPECT_GE(report.memory_image_bytes(), kPinned);
    EXPECT_LT(report.image_bytes() - report.memory_image_bytes(), kPinned / 4);
    EXPECT_LT(report.sent_image_bytes() - report.early_image_bytes(), kPinned / 2);
    pid = static_cast<pid_t>(report.destination_pid());
    host = other(host);
  }
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + kSome)) << moved.output();
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  EXPECT_TRUE(printed_what_prints(moved, start_pinned(hosts, Host::kA, kPinned, 20)));
}

}  // namespace
}  // namespace gcr::e2e

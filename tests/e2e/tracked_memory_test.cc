// The memory of a GPU process, whose writes the kernel tracks while it is copied.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "migrate-agent/process/pages/mappings.h"
#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/pagemap_scan.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;

class TrackedMemoryTest : public testing::Test {
 protected:
  static constexpr std::size_t kSome = 5;
  static constexpr std::uint64_t kRestingMib = 96;
  static constexpr std::uint64_t kResting = kRestingMib * kMiB;

  void SetUp() override {
    const auto scan = process::PageScan::open(::getpid());
    AddressRanges none;
    if (!scan || !scan->find({}, {0, 4096}, none)) GTEST_SKIP() << "the kernel has no PAGEMAP_SCAN";
  }

  App start(const std::string& how = "") {
    App app =
        hosts_.start_app(Host::kA, {"/bin/sh", "-c",
                                    fmt::format("exec python3 {}/tests/e2e/sweeping.py 8 {} {}",
                                                GCR_SOURCE_DIR, kRestingMib, how)});
    EXPECT_TRUE(app.wait_for_lines(kSome)) << app.output();
    return app;
  }

  /// At the agent of a host, once.
  void arm(Host host, const std::string& line) {
    fs::remove(hit(host));
    std::ofstream(hosts_.directory(host) + "/faults.new") << line << '\n';
    fs::rename(hosts_.directory(host) + "/faults.new", hosts_.directory(host) + "/faults");
  }
  std::string hit(Host host) const { return hosts_.directory(host) + "/faults.hit"; }

  static void expect_progress(const App& app) {
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kSome)) << app.output();
    std::size_t sweep = 0;
    for (const std::string& line : app.lines()) ASSERT_EQ(line, fmt::format("sweep {}", ++sweep));
  }

  void expect_all_is_read(const std::string& how) {
    const App app = start(how);
    const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, app.pid(), {});
    ASSERT_TRUE(outcome.exit_code == 0 && outcome.report.verified()) << outcome.err;
    EXPECT_GE(outcome.report.image_bytes(), kResting);
    expect_progress(app);
  }

  static bool is_tracked(pid_t pid) {
    const auto mappings = process::read_mappings(pid);
    EXPECT_TRUE(mappings);
    return std::ranges::any_of(*mappings, &process::MemoryMapping::tracked);
  }

  TwoHosts hosts_{{"--fault-points", "true"}};
};

TEST_F(TrackedMemoryTest, OnlyWrittenPagesAreReadAtTheSwitchover) {
  const App app = start();
  Host host = Host::kA;
  pid_t pid = app.pid();
  for (int move = 0; move < 4; ++move) {
    ASSERT_NO_FATAL_FAILURE(expect_progress(app));
    arm(host, "source.memory.check check");
    const MigrateReport outcome = hosts_.migrate_for_report(host, pid, {});
    ASSERT_TRUE(outcome.exit_code == 0 && outcome.report.verified()) << outcome.err;
    EXPECT_TRUE(fs::exists(hit(host)));
    EXPECT_GT(outcome.report.sent_image_bytes(), kResting / 4);
    pid = static_cast<pid_t>(outcome.report.destination_pid());
    host = other(host);
    EXPECT_FALSE(is_tracked(pid));
  }
  expect_progress(app);
}

/// Writes to the resting memory of a process and protects the page again: the kernel then knows of
/// no write.
void write_hidden(pid_t pid, std::uint64_t resting) {
  const auto open = [pid](const char* file, int flags) {
    return UniqueFd(::open(fmt::format("/proc/{}/{}", pid, file).c_str(), flags | O_CLOEXEC));
  };
  const auto mappings = process::read_mappings(pid);
  ASSERT_TRUE(mappings);
  const auto found = std::ranges::find_if(*mappings, [&](const process::MemoryMapping& one) {
    return one.plain && one.range.bytes() >= resting;
  });
  ASSERT_NE(found, mappings->end());
  constexpr std::string_view kWritten = "hidden";
  constexpr std::uint64_t kPage = 4096;
  // The swept memory may adjoin the resting memory, in one mapping: its middle rests.
  const std::uint64_t page = found->range.start + found->range.bytes() / 2 / kPage * kPage;
  ASSERT_EQ(::pwrite(open("mem", O_RDWR).get(), kWritten.data(), kWritten.size(),
                     static_cast<off_t>(page + kPage / 4)),
            kWritten.size());
  pagemap::ScanArguments scan{};
  scan.size = sizeof(scan);
  scan.flags = pagemap::kProtectMatching;
  scan.start = page;
  scan.end = page + kPage;
  scan.category_mask = pagemap::kIsWritten | pagemap::kIsPresent;
  ASSERT_GE(::ioctl(open("pagemap", O_RDONLY).get(), pagemap::kScan, &scan), 0);
}

TEST_F(TrackedMemoryTest, CheckFindsAWriteUnseenByTheKernel) {
  const App app = start();
  const std::string go = hosts_.directory(Host::kA) + "/go";
  arm(Host::kA, fmt::format("source.closing run until [ -e {} ]; do sleep 0.01; done", go));
  std::jthread writer([&](const std::stop_token& stop) {
    while (!fs::exists(hit(Host::kA)) && !stop.stop_requested()) std::this_thread::yield();
    write_hidden(app.pid(), kResting);
    arm(Host::kA, "source.memory.check check");
    std::ofstream(go).close();
  });
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, app.pid());
  EXPECT_FALSE(outcome.migrated());
  EXPECT_THAT(outcome.err, testing::HasSubstr("was written and the kernel does not know it"));
  expect_progress(app);
}

TEST_F(TrackedMemoryTest, UnchangedMemoryIsNotReadAtTheSwitchover) {
  const App app = start();
  const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, app.pid(), {});
  ASSERT_TRUE(outcome.exit_code == 0 && outcome.report.verified()) << outcome.err;
  EXPECT_LT(outcome.report.image_bytes(), kResting / 2);
  expect_progress(app);
}

TEST_F(TrackedMemoryTest, DeviceWritableMemoryIsReadAtTheSwitchover) {
  expect_all_is_read("registered");
}

TEST_F(TrackedMemoryTest, DirectIoMemoryIsReadAtTheSwitchover) { expect_all_is_read("direct"); }

TEST_F(TrackedMemoryTest, SeccompProcessIsReadAtTheSwitchover) { expect_all_is_read("filtered"); }

TEST_F(TrackedMemoryTest, NothingIsTrackedAfterARollback) {
  const App app = start();
  for (const char* fault : {"source.closing error", "source.dumped error", "source.closing kill",
                            "source.dumped kill"}) {
    SCOPED_TRACE(fault);
    arm(Host::kA, fault);
    EXPECT_FALSE(hosts_.migrate(Host::kA, app.pid()).migrated());
    EXPECT_TRUE(fs::exists(hit(Host::kA)));
    ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
    ASSERT_NO_FATAL_FAILURE(expect_progress(app));
    EXPECT_FALSE(is_tracked(app.pid()));
  }
  EXPECT_TRUE(migrated(hosts_.migrate(Host::kA, app.pid())));
  expect_progress(app);
}

}  // namespace
}  // namespace gcr::e2e

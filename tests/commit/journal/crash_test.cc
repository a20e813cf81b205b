// Writers that are killed at any moment: every record that they confirmed is in the journal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/base/unique_fd.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

/// The journal has at least this many records, all of them durable.
struct Confirmed {
  Uuid migration;
  int records = 0;
};

/// Fills one journal after the other until it is killed; ends by itself only if something fails.
[[noreturn]] void write_journals(const std::filesystem::path& state_dir, int report) {
  while (true) {
    const Uuid migration = Uuid::random();
    Journal journal = begin(state_dir, migration);
    for (int count = 1; count < static_cast<int>(kSlots); ++count) {
      const Confirmed confirmed{migration, count};
      if (::write(report, &confirmed, sizeof confirmed) != sizeof confirmed) ::_exit(1);
      if (count + 1 < static_cast<int>(kSlots) && !journal.append(keeper_started(count)))
        ::_exit(1);
    }
  }
}

/// Kills the writer after `events` confirmations and `delay`; returns all records that it had
/// confirmed.
std::map<Uuid, int> kill_a_writer(const std::filesystem::path& state_dir, unsigned events,
                                  std::chrono::microseconds delay) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reports(ends[0]);
  UniqueFd report(ends[1]);
  const pid_t writer = start_child([&] { write_journals(state_dir, report.get()); });
  report.reset();
  std::map<Uuid, int> result;
  Confirmed confirmed;
  bool killed = false;
  while (::read(reports.get(), &confirmed, sizeof confirmed) == sizeof confirmed) {
    result[confirmed.migration] = confirmed.records;
    if (events-- != 0) continue;
    std::this_thread::sleep_for(delay);
    kill_and_reap(writer);
    killed = true;
  }
  EXPECT_TRUE(killed) << "the writer failed";
  return result;
}

/// The confirmed records, and at most one more that was not yet confirmed.
void expect_promises_kept(const Contents& contents, int confirmed) {
  ASSERT_FALSE(contents.damage) << contents.damage->message();
  const int found = static_cast<int>(contents.records.size());
  EXPECT_GE(found, confirmed);
  EXPECT_LE(found, confirmed + 1);
  for (int i = 1; i < found; ++i) {
    EXPECT_EQ(contents.records[static_cast<std::size_t>(i)].keeper_started().keeper().pid(), i);
  }
}

/// A reader without the lock finds the same records as the next owner, which can append to them.
void expect_next_owner_appends(const std::filesystem::path& path) {
  const auto contents = read(path);
  auto journal = Journal::open(path, Lock::kTry);
  ASSERT_TRUE(journal) << journal.error().message();
  EXPECT_EQ(journal->records().size(), contents->records.size());
  EXPECT_EQ(journal->append(committed()).has_value(), contents->records.size() < kSlots - 1);
}

/// Where writers write, and for how long.
struct Kills {
  const char* name;
  const char* folder;
  int count;
  unsigned max_events;
  int max_delay_us;
};

class Crash : public testing::TestWithParam<Kills> {};

TEST_P(Crash, ConfirmedRecordsSurviveAKillAtAnyTime) {
  std::mt19937 random(4711);
  const Kills& kills = GetParam();
  for (int kill = 0; kill < kills.count; ++kill) {
    const StateDir dir(kills.folder);
    std::uniform_int_distribution delay_us(0, kills.max_delay_us);
    const auto promised = kill_a_writer(dir.path(), random() % kills.max_events,
                                        std::chrono::microseconds(delay_us(random)));
    ASSERT_FALSE(promised.empty());
    for (const auto& [migration, confirmed] : promised) {
      const auto contents = read(path_of(dir.path(), migration, Began::SOURCE));
      ASSERT_TRUE(contents) << contents.error().message();
      expect_promises_kept(*contents, confirmed);
    }
    const auto entries = list(dir.path()).value();
    for (const Entry& entry : entries) expect_next_owner_appends(entry.path);
  }
}

// Mostly on tmpfs, where a writer spends its time in its own code; some on a disk, where it spends
// its time waiting.
INSTANTIATE_TEST_SUITE_P(, Crash,
                         testing::Values(Kills{"InMemory", "/dev/shm", 200, 70, 300},
                                         Kills{"OnDisk", "/var/tmp", 20, 10, 20'000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gcr::journal::test

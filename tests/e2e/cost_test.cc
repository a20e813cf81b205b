// The cost of a migration on the wire and in the agents' memory.
#include <gtest/gtest.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

/// The value in bytes of a "Name:  123 kB" line of /proc/PID/status.
std::uint64_t status_bytes(pid_t pid, const std::string& name) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = text.find(name + ":");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size() + 1)) * kKiB;
}

/// Watches the workers of both agents during its lifetime and keeps the largest memory of one:
/// private pages and hugepages (mappings of files and other memfds, VRAM among them, do not count).
class WorkerMemoryWatch {
 public:
  explicit WorkerMemoryWatch(const TwoHosts& hosts) : hosts_(hosts), thread_([this] { watch(); }) {}
  ~WorkerMemoryWatch() { stop(); }

  std::uint64_t stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return largest_bytes_;
  }

 private:
  void watch() {
    UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    const itimerspec every_5_ms{{0, 5'000'000}, {0, 5'000'000}};
    ::timerfd_settime(timer.get(), 0, &every_5_ms, nullptr);
    while (!stopped_) {
      for (const Host host : {Host::kA, Host::kB}) {
        for (const pid_t pid : hosts_.workers(host)) {
          largest_bytes_ = std::max(
              largest_bytes_, status_bytes(pid, "RssAnon") + status_bytes(pid, "HugetlbPages"));
        }
      }
      std::uint64_t expirations = 0;
      if (::read(timer.get(), &expirations, sizeof(expirations)) < 0) return;
    }
  }

  const TwoHosts& hosts_;
  std::atomic<bool> stopped_ = false;
  std::uint64_t largest_bytes_ = 0;
  std::thread thread_;
};

struct Cost {
  MigrateOutcome outcome;
  std::uint64_t received_bytes = 0;
  std::uint64_t worker_memory_bytes = 0;
};

constexpr std::uint64_t kWindowBytes = 64 * kMiB;

Cost migrate_counter(std::uint64_t vram_bytes) {
  TwoHosts hosts({"--landing-window", format_bytes(kWindowBytes)});
  App counter = start_counter(hosts, Host::kA, vram_bytes);
  const std::uint64_t received_before = received_bytes(hosts, Host::kB);
  WorkerMemoryWatch watch(hosts);
  Cost cost;
  cost.outcome = hosts.migrate(Host::kA, counter.pid());
  cost.worker_memory_bytes = watch.stop();
  cost.received_bytes = received_bytes(hosts, Host::kB) - received_before;
  return cost;
}

TEST(MigrationCost, BuffersAreSentOnceInConstantMemory) {
  constexpr std::uint64_t kSmall = 2 * kWindowBytes;  // every slot of the mover is used
  constexpr std::uint64_t kLarge = 8 * kWindowBytes;
  // that an agent may need in addition to the window
  constexpr std::uint64_t kBesides = 512 * kMiB;
  const Cost small = migrate_counter(kSmall);
  ASSERT_TRUE(migrated(small.outcome));
  const Cost large = migrate_counter(kLarge);
  ASSERT_TRUE(migrated(large.outcome));

  const std::uint64_t more_vram = large.outcome.vram_bytes - small.outcome.vram_bytes;
  EXPECT_GE(more_vram, kLarge - kSmall);
  // Everything else on the link (images, TLS, TCP and IP headers) is the same for both.
  const std::uint64_t more_received = large.received_bytes - small.received_bytes;
  EXPECT_GE(more_received, more_vram);
  EXPECT_LE(more_received, more_vram + more_vram / 50);
  EXPECT_GT(large.worker_memory_bytes, 0U);
  EXPECT_LE(large.worker_memory_bytes, small.worker_memory_bytes + 32 * kMiB);
  EXPECT_LE(large.worker_memory_bytes, kWindowBytes + kBesides);
}

}  // namespace
}  // namespace gcr::e2e

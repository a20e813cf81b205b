#include "migrate-agent/migration/source/member.h"

#include <time.h>
#include <unistd.h>

#include <thread>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::migration {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kYouth{10};
constexpr std::chrono::seconds kSoon{1};
constexpr std::chrono::milliseconds kPause{10};

bool is_young(const procfs::Stat& stat) {
  timespec since_boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const auto born = static_cast<time_t>(stat.start_time) / ::sysconf(_SC_CLK_TCK);
  return since_boot.tv_sec - born < kYouth.count();
}

}  // namespace

bool any_member_ends(const journal::ProcessIds& members) {
  for (const auto end = Clock::now() + kSoon;; std::this_thread::sleep_for(kPause)) {
    bool any_young = false;
    for (int i = 1; i < members.size(); ++i) {
      const auto stat = procfs::read_stat(members[i].pid());
      if (!stat || stat->start_time != members[i].start_time() || procfs::has_ended(*stat)) {
        return true;
      }
      any_young = any_young || is_young(*stat);
    }
    if (!any_young || Clock::now() >= end) return false;
  }
}

}  // namespace gcr::migration

#include "migrate-agent/criu/launch/watchdog.h"

#include <signal.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::criu {
namespace {

/// Looks during its patience.
constexpr int kLooks = 20;

/// A text that changes with everything it does; see proc(5).
std::string work_of(const std::string& process, const procfs::Stat& stat) {
  const std::string work =
      std::to_string(stat.cpu_ticks) + procfs::read_text("/proc/" + process + "/io");
  auto status = procfs::status_fields(process);
  return work + status["voluntary_ctxt_switches"] + " " + status["nonvoluntary_ctxt_switches"];
}

/// Whether it is in a system call that writes.
bool is_writing(const std::string& process) {
  const std::string call = procfs::read_text("/proc/" + process + "/syscall");
  const long number = std::strtol(call.c_str(), nullptr, 10);  // "running": 0, which reads
  return number == SYS_write || number == SYS_writev || number == SYS_splice;
}

}  // namespace

Watchdog::Watchdog(procfs::Process watched, std::chrono::milliseconds patience)
    : watched_(std::move(watched)),
      thread_([this, patience](const std::stop_token& token) { watch(token, patience); }) {}

bool Watchdog::end() {
  thread_.request_stop();
  thread_.join();
  return has_killed_;
}

void Watchdog::watch(const std::stop_token& token, std::chrono::milliseconds patience) {
  const std::string process = std::to_string(watched_.pid());
  std::string seen;
  std::unique_lock lock(mutex_);
  for (int still = 0; still < kLooks;) {
    never_.wait_for(lock, token, patience / kLooks, [] { return false; });
    const auto stat = procfs::read_stat(process);
    if (token.stop_requested() || !stat || watched_.has_ended()) return;
    const std::string work = work_of(process, *stat);
    const bool stands = work == std::exchange(seen, work) && stat->state != 'R';
    still = stands && !is_writing(process) ? still + 1 : 0;
  }
  has_killed_ = watched_.send(SIGKILL).has_value();
}

}  // namespace gcr::criu

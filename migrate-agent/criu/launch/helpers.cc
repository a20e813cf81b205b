#include "migrate-agent/criu/launch/helpers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// How often descriptors and FIFOs are checked while CRIU runs.
constexpr std::chrono::milliseconds kLookInterval{20};

bool is_below(const fs::path& directory, const std::string& target) {
  const std::string& prefix = directory.native();
  return target.starts_with(prefix) &&
         (target.size() == prefix.size() || target[prefix.size()] == '/' ||
          target[prefix.size()] == ' ');  // " (deleted)"
}

bool has_open(pid_t pid, const fs::path& directory) {
  return std::ranges::any_of(procfs::descriptor_links(pid), [&](const procfs::DescriptorLink& one) {
    return is_below(directory, one.link);
  });
}

/// A process other than this one that has something open there. It may be the dumped process
/// itself, which has CRIU's log open for a while.
std::optional<procfs::Process> find_helper(const fs::path& scratch) {
  for (const pid_t pid : procfs::processes()) {
    if (pid == ::getpid() || !has_open(pid, scratch)) continue;
    if (const auto process = procfs::Process::open(pid)) return *process;
  }
  return std::nullopt;
}

/// A process that waits in open() for a writer of a FIFO here reads an end of file instead.
void release_waiting(const fs::path& scratch) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(scratch, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (!it->is_fifo(gone)) continue;
    const UniqueFd writer(::open(it->path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }
}

Status wait_until_done(const procfs::Process& helper, const fs::path& scratch,
                       Clock::time_point deadline) {
  while (has_open(helper.pid(), scratch)) {
    release_waiting(scratch);
    if (Clock::now() > deadline) {
      return Error(Code::kTimeout, "process " + std::to_string(helper.pid()) +
                                       " is still at work in " + scratch.string());
    }
    (void)helper.ends_within(kLookInterval);
  }
  return {};
}

}  // namespace

Status wait_for_helpers(const fs::path& scratch, std::chrono::milliseconds patience) {
  if (scratch.empty()) return {};
  std::error_code error;
  const fs::path directory = fs::weakly_canonical(scratch, error);
  if (error) return Error::from_errno(error.value(), "cannot look at " + scratch.string());
  const auto deadline = Clock::now() + patience;
  // A process may start CRIU as its child and end during the search: two passes must find nothing.
  for (int empty_looks = 0; empty_looks < 2; ++empty_looks) {
    const auto helper = find_helper(directory);
    if (!helper) continue;
    GCR_TRY(wait_until_done(*helper, directory, deadline));
    empty_looks = -1;
  }
  return {};
}

}  // namespace gcr::criu

#include "migrate-agent/criu/helpers.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "migrate-agent/process/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// How often the FIFOs are looked at while CRIU goes on.
constexpr int kLookMs = 20;

bool is_below(const fs::path& directory, const std::string& target) {
  const std::string& prefix = directory.native();
  return target.starts_with(prefix) &&
         (target.size() == prefix.size() || target[prefix.size()] == '/' ||
          target[prefix.size()] == ' ');  // " (deleted)"
}

bool has_open(pid_t pid, const fs::path& directory) {
  std::error_code error;
  const fs::path descriptors = "/proc/" + std::to_string(pid) + "/fd";
  for (fs::directory_iterator it(descriptors, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code closed;
    const fs::path target = fs::read_symlink(it->path(), closed);
    if (!closed && is_below(directory, target.native())) return true;
  }
  return false;
}

/// A process other than this one that works there; a pidfd.
std::optional<UniqueFd> find_helper(const fs::path& scratch) {
  for (const pid_t pid : procfs::processes()) {
    if (pid == ::getpid() || !has_open(pid, scratch)) continue;
    auto process = procfs::open_pidfd(pid);
    if (process) return std::move(*process);
  }
  return std::nullopt;
}

/// Whoever waits in open() for a writer of a FIFO here reads an end of file instead.
void release_waiting(const fs::path& scratch) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(scratch, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (!it->is_fifo(gone)) continue;
    const UniqueFd writer(::open(it->path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }
}

}  // namespace

Status wait_for_helpers(const fs::path& scratch, std::chrono::milliseconds patience) {
  if (scratch.empty()) return {};
  std::error_code error;
  const fs::path directory = fs::weakly_canonical(scratch, error);
  if (error) return Error::from_errno(error.value(), "cannot look at " + scratch.string());
  const auto deadline = Clock::now() + patience;
  while (const auto helper = find_helper(directory)) {
    pollfd ended{helper->get(), POLLIN, 0};
    do {
      release_waiting(directory);
      if (Clock::now() < deadline) continue;
      return Error(Code::kTimeout, "CRIU is still at work in " + directory.string());
    } while (::poll(&ended, 1, kLookMs) <= 0);
  }
  return {};
}

}  // namespace gcr::criu

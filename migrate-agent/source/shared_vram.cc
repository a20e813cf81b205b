#include "migrate-agent/source/shared_vram.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "migrate-agent/process/descriptors.h"
#include "migrate-agent/procfs/procfs.h"

namespace gcr::agent {
namespace {

namespace fs = std::filesystem;

/// The number of memory that the process has a descriptor of; `file` is what the driver's
/// descriptors of memory are links to.
std::optional<std::uint64_t> find_in(pid_t pid, const job::SameMemory& shared,
                                     const fs::path& file) {
  std::error_code error;
  fs::directory_iterator at(fmt::format("/proc/{}/fd", pid), error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(at->path(), gone) != file) continue;
    const std::string name = at->path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (const auto number = shared.find(pid, descriptor)) return number;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> find_sharers(const job::SameMemory& shared,
                                      const std::vector<pid_t>& members) {
  std::vector<std::string> sharers;
  if (shared.any() < 0) return sharers;
  std::error_code error;
  const fs::path file = fs::read_symlink(fmt::format("/proc/self/fd/{}", shared.any()), error);
  for (const pid_t pid : procfs::processes()) {
    if (pid == ::getpid() || std::ranges::find(members, pid) != members.end()) continue;
    if (!find_in(pid, shared, file)) continue;
    sharers.push_back(
        fmt::format("process {} has GPU memory of the job, and is not below process {}",
                    process::describe_process(pid), process::describe_process(members.front())));
  }
  return sharers;
}

}  // namespace gcr::agent

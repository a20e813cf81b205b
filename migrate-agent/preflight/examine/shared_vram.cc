#include "migrate-agent/preflight/examine/shared_vram.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/descriptors.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;

/// Returns whether the process has a descriptor of shared memory; `file` is the link target of the
/// driver's memory descriptors.
bool has_any(pid_t pid, const gpu::SameMemory& shared, const std::string& file) {
  return std::ranges::any_of(procfs::descriptor_links(pid), [&](const auto& descriptor) {
    return descriptor.link == file && shared.find(pid, descriptor.number);
  });
}

/// Returns whether the process is this one or the keeper that it started.
bool is_ours(pid_t pid) {
  return pid == ::getpid() || procfs::read_stat(pid).value_or(procfs::Stat()).parent == ::getpid();
}

}  // namespace

std::vector<std::string> find_sharers(const gpu::SameMemory& shared,
                                      const std::vector<pid_t>& members) {
  std::vector<std::string> sharers;
  if (shared.any() < 0) return sharers;
  std::error_code error;
  const std::string file = fs::read_symlink(fmt::format("/proc/self/fd/{}", shared.any()), error);
  for (const pid_t pid : procfs::processes()) {
    if (std::ranges::find(members, pid) != members.end()) continue;
    if (!has_any(pid, shared, file) || is_ours(pid)) continue;
    sharers.push_back(
        fmt::format("process {} has GPU memory of the job, but is not a descendant of process {}",
                    process::describe_process(pid), process::describe_process(members.front())));
  }
  return sharers;
}

}  // namespace gcr::preflight

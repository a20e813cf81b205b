#include "migrate-agent/process/inspect/together.h"

#include <algorithm>
#include <filesystem>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::process {

namespace fs = std::filesystem;

namespace {

/// Agents' processes run our own program, or another build of it in the same directory.
bool is_agent(pid_t pid) {
  std::error_code error;
  const fs::path theirs = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (error) return false;
  const fs::path ours = fs::read_symlink("/proc/self/exe", error);
  return theirs == ours || (theirs.parent_path() == ours.parent_path() &&
                            theirs.filename().string().starts_with("migrate-agent"));
}

}  // namespace

bool is_agent_or_gone(pid_t pid) { return procfs::has_ended(pid) || is_agent(pid); }

Together::Together(std::set<pid_t> pids) : pids_(std::move(pids)) {
  for (const pid_t pid : procfs::processes()) {
    for (const auto& [number, link] : procfs::descriptor_links(pid)) holders_.emplace(link, pid);
  }
}

bool Together::contains(pid_t pid) const {
  while (!pids_.contains(pid)) {
    const auto stat = pid > 1 ? procfs::read_stat(pid) : std::nullopt;
    if (!stat) return false;
    pid = stat->parent;
  }
  return true;
}

bool Together::holds(const std::string& link) const {
  const auto [first, last] = holders_.equal_range(link);
  return std::any_of(first, last, [this](const auto& entry) { return contains(entry.second); });
}

pid_t Together::outsider(const std::string& link, Agents agents) const {
  const auto [first, last] = holders_.equal_range(link);
  for (auto it = first; it != last; ++it) {
    const pid_t holder = it->second;
    if (contains(holder) || procfs::has_ended(holder)) continue;
    if (agents == Agents::kCounted || !is_agent(holder)) return holder;
  }
  return 0;
}

}  // namespace gcr::process

#include "migrate-agent/process/together.h"

#include <algorithm>
#include <filesystem>

#include "migrate-agent/procfs/procfs.h"

namespace gcr::process {

namespace fs = std::filesystem;

bool is_agent_or_gone(pid_t pid) {
  std::error_code error;
  const fs::path theirs = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (error) return error == std::errc::no_such_file_or_directory;
  const fs::path ours = fs::read_symlink("/proc/self/exe", error);
  return theirs == ours || (theirs.parent_path() == ours.parent_path() &&
                            theirs.filename().string().starts_with("migrate-agent"));
}

Together::Together(std::set<pid_t> pids) : pids_(std::move(pids)) {
  std::error_code error;
  for (const pid_t pid : procfs::processes()) {
    fs::directory_iterator it("/proc/" + std::to_string(pid) + "/fd", error);
    for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
      std::error_code gone;
      const std::string link = fs::read_symlink(it->path(), gone);
      if (!gone && !link.empty()) holders_.emplace(link, pid);
    }
  }
}

bool Together::holds(const std::string& link) const {
  const auto [first, last] = holders_.equal_range(link);
  return std::any_of(first, last, [this](const auto& entry) { return contains(entry.second); });
}

pid_t Together::outsider(const std::string& link, Agents agents) const {
  const auto [first, last] = holders_.equal_range(link);
  for (auto it = first; it != last; ++it) {
    if (contains(it->second)) continue;
    if (agents == Agents::kCounted || !is_agent_or_gone(it->second)) return it->second;
  }
  return 0;
}

}  // namespace gcr::process

#include "migrate-agent/process/inspect/together.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/files.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;
using procfs::FileId;

bool is_agent(pid_t pid) {
  std::error_code error;
  const fs::path theirs = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (error) return false;
  const fs::path ours = fs::read_symlink("/proc/self/exe", error);
  return theirs == ours || (theirs.parent_path() == ours.parent_path() &&
                            theirs.filename().string().starts_with("migrate-agent"));
}

/// The file behind a descriptor; no file server is asked.
FileId file_behind(pid_t pid, int descriptor) {
  const std::string link = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  struct statx status {};
  if (::statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC, STATX_INO, &status) != 0) return {};
  return {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
}

/// Those of `files` that the process has.
std::set<FileId> had_by(pid_t pid, const std::set<FileId>& files) {
  std::set<FileId> had;
  for (const Mapping& mapping : named_mappings(pid)) {
    const FileId id{mapping.device, mapping.inode};
    if (files.contains(id)) had.insert(id);
  }
  for (const auto& [number, link] : procfs::descriptor_links(pid)) {
    if (!link.starts_with('/')) continue;
    const FileId id = file_behind(pid, number);
    if (files.contains(id)) had.insert(id);
  }
  return had;
}

}  // namespace

bool is_agent_or_gone(pid_t pid) { return procfs::has_ended(pid) || is_agent(pid); }

std::map<int, std::string> streams_of(const procfs::Container& container) {
  std::map<int, std::string> streams;
  for (const auto& [number, link] : procfs::descriptor_links(container.init().pid())) {
    if (number <= STDERR_FILENO && link.starts_with("pipe:[")) streams.emplace(number, link);
  }
  return streams;
}

Together::Together(std::set<pid_t> pids, std::optional<procfs::Container> container)
    : pids_(std::move(pids)), container_(std::move(container)) {
  if (container_) {
    for (auto& [number, link] : streams_of(*container_)) streams_.insert(std::move(link));
  }
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

pid_t Together::in_place_of() const { return container_ ? container_->init().pid() : ::getpid(); }

Status Together::in_place(const std::function<Status()>& work) const {
  return container_ ? container_->inside(work) : work();
}

std::map<FileId, pid_t> outsiders(const std::set<FileId>& files, const std::set<pid_t>& members) {
  std::map<FileId, pid_t> found;
  if (files.empty()) return found;
  for (const pid_t pid : procfs::processes()) {
    if (members.contains(pid)) continue;
    const std::set<FileId> had = had_by(pid, files);
    if (had.empty() || is_agent_or_gone(pid)) continue;
    for (const FileId& file : had) found.emplace(file, pid);
  }
  return found;
}

}  // namespace gcr::process

#include "migrate-agent/process/slurm/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace gcr::slurm {
namespace {

namespace fs = std::filesystem;

/// Independent of the umask.
constexpr mode_t kReadable = 0755;
constexpr mode_t kReadableFile = 0644;

/// A step that runs has a socket in slurmd's spool directory: NODE_JOB.STEP.
bool has_steps(const Settings& settings, const std::string& job) {
  const std::string prefix = fmt::format("{}_{}.", settings.node, job);
  std::error_code error;
  const auto is_its = [&](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with(prefix);
  };
  const bool found = std::ranges::any_of(fs::directory_iterator(settings.spool, error), is_its);
  return found || error;
}

void remove_stale(const Settings& settings, const std::string& but) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(settings.folder, error)) {
    const std::string job = entry.path().filename();
    if (job == but || has_steps(settings, job)) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

Status make_directory(const fs::path& path) {
  if ((::mkdir(path.c_str(), kReadable) == 0 && ::chmod(path.c_str(), kReadable) == 0) ||
      errno == EEXIST) {
    return {};
  }
  return Error::from_errno(errno, "cannot make the directory " + path.string());
}

Status write_file(const Settings& settings, JobId job, const char* name, const std::string& text) {
  GCR_ASSIGN(const UniqueFd folder, open_folder(settings, job));
  const std::string whole = fmt::format("{}.{}", name, ::getpid());
  const UniqueFd file(::openat(folder.get(), whole.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                               kReadableFile));
  if (!file || ::fchmod(file.get(), kReadableFile) != 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::renameat(folder.get(), whole.c_str(), folder.get(), name) != 0) {
    return Error::from_errno(
        errno, fmt::format("cannot write {}/{}/{}", settings.folder.string(), job, name));
  }
  return {};
}

}  // namespace

Result<UniqueFd> open_folder(const Settings& settings, JobId job) {
  const std::string name = std::to_string(job);
  GCR_TRY(make_directory(settings.folder));
  remove_stale(settings, name);
  const fs::path path = settings.folder / name;
  GCR_TRY(make_directory(path));
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return Error::from_errno(errno, "cannot open the directory " + path.string());
  return folder;
}

Status note_pid(const Settings& settings, JobId job, pid_t pid) {
  return write_file(settings, job, "pid", fmt::format("{}\n", pid));
}

Status note_lost(const Settings& settings, JobId job) {
  std::error_code error;
  if (fs::exists(settings.folder / std::to_string(job) / "status", error)) return {};
  return write_file(settings, job, "status", fmt::format("{}\n", SIGKILL));
}

Status note_moved(const Settings& settings, JobId job, JobId successor) {
  return write_file(settings, job, "moved",
                    successor == 0 ? std::string("\n") : fmt::format("{}\n", successor));
}

}  // namespace gcr::slurm

#include "migrate-agent/process/inspect/named_files.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

/// Names that the kernel gives to memory.
constexpr std::array<std::string_view, 8> kMemory = {
    "/memfd:",        "/dmabuf:", "/SYSV",      "/dev/zero (deleted)",
    "/anon_hugepage", "/[aio]",   "/secretmem", "/drm mm"};

bool is_memory(const std::string& path) {
  return std::ranges::any_of(kMemory, [&](auto name) { return path.starts_with(name); });
}

bool is_on_tmpfs(const UniqueFd& file) {
  struct statfs system {};
  return ::fstatfs(file.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

/// Collects the names of one process.
class Names {
 public:
  Names(pid_t pid, pid_t inner, bool with_content)
      : pid_(pid), own_(fmt::format("/proc/{}/", inner)), with_content_(with_content) {}

  /// `link` is the kernel's link to the file itself, not to what has its name now.
  void add(const std::string& link, std::uint32_t access, bool content, bool mapped = false) {
    std::error_code error;
    std::string gone;
    std::string path = fs::read_symlink(link, error);
    if (error) return miss(link, error.value());
    if (!path.starts_with('/') || is_memory(path) || is_driver_file(path) ||
        path.starts_with(own_)) {
      return;
    }
    const UniqueFd file = procfs::hold(link);
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0) return miss(link, errno);
    // What has been removed is made again below a directory of root's; CRIU must not do that with a
    // file that has another name.
    const bool linked = S_ISREG(status.st_mode) && status.st_nlink != 0;
    if (path.ends_with(kDeleted) && !linked) return;
    const bool in_memory = linked && is_on_tmpfs(file);
    if (in_memory && path.ends_with(kDeleted)) {
      gone = path.substr(0, path.size() - kDeleted.size());
      add_directory_of(gone);
      path = sibling_name(gone, {status.st_dev, status.st_ino}).value_or(path);
    }
    const bool wanted =
        with_content_ && content && !path.starts_with("/proc/") && !path.starts_with("/sys/");
    auto [named, is_new] = place(path, status);
    if (is_new) {
      describe_file(path, file, status, {wanted, mapped}, named.fact);
    } else if (!content) {
      forget_content(named.fact);
    }
    named.fact.set_access(named.fact.access() | access);
    if (!in_memory) return;
    named.link = link;
    named.shared |= mapped && !content;
    if (!gone.empty()) named.gone_names.insert(gone);
  }

  /// An Error if there is a file of which nothing is known.
  Result<std::vector<NamedFile>> release() {
    if (missed_) return *missed_;
    return std::move(found_);
  }

 private:
  /// What is gone meanwhile is not missed.
  void miss(const std::string& link, int errno_value) {
    if (errno_value == ENOENT || errno_value == ESRCH) return;
    missed_ = Error::from_errno(errno_value, fmt::format("cannot tell what file {} is", link));
  }

  struct Place {
    NamedFile& file;
    bool is_new;
  };

  /// A name may lead to several files, one after the other.
  Place place(const std::string& path, const struct stat& status) {
    const FileId id{status.st_dev, status.st_ino};
    const auto [at, is_new] = places_.emplace(std::pair(path, id), found_.size());
    if (is_new) found_.emplace_back().id = id;
    return {found_[at->second], is_new};
  }

  /// Another name of the file in the directory of the one that is gone.
  std::optional<std::string> sibling_name(const std::string& gone, const FileId& id) {
    const std::string directory = fs::path(gone).parent_path();
    auto known = directories_.find(directory);
    if (known == directories_.end()) {
      const UniqueFd opened = procfs::open_directory(directory, pid_);
      auto files = opened ? procfs::regular_files(opened) : std::multimap<ino_t, std::string>();
      known = directories_.emplace(directory, std::move(files)).first;
    }
    const auto [first, last] = known->second.equal_range(id.second);
    for (auto at = first; at != last; ++at) {
      const std::string name = fs::path(directory) / at->second;
      struct stat status {};
      const std::string here = fmt::format("/proc/{}/root{}", pid_, name);
      if (::lstat(here.c_str(), &status) == 0 && FileId{status.st_dev, status.st_ino} == id) {
        return name;
      }
    }
    return std::nullopt;
  }

  static void forget_content(proto::FileFact& fact) {
    fact.clear_size_bytes();
    fact.clear_build_id();
    fact.clear_sha256();
  }

  /// CRIU creates the file again in its directory, or in a new directory in the one above.
  void add_directory_of(const std::string& deleted) {
    for (fs::path at = fs::path(deleted).parent_path();; at = at.parent_path()) {
      struct stat status {};
      const std::string here = fmt::format("/proc/{}/root{}", pid_, at.string());
      if (::lstat(here.c_str(), &status) != 0 && at.has_relative_path()) continue;
      const auto [file, is_new] = place(at, status);
      if (is_new) describe_file(at, UniqueFd(), status, {}, file.fact);
      return;
    }
  }

  const pid_t pid_;
  const std::string own_;
  const bool with_content_;
  std::map<std::pair<std::string, FileId>, std::size_t> places_;
  std::map<std::string, std::multimap<ino_t, std::string>> directories_;
  std::vector<NamedFile> found_;
  std::optional<Error> missed_;
};

void add_descriptors(pid_t pid, const std::string& process, Names& names) {
  std::error_code error;
  fs::directory_iterator it(process + "/fd", error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::uint32_t access = open_mode(pid, std::atoi(it->path().filename().c_str()));
    names.add(it->path(), access, (access & W_OK) == 0);
  }
}

void add_mappings(pid_t pid, const std::string& process, const std::string& program, Names& names) {
  for (const Mapping& mapping : named_mappings(pid)) {
    const bool writes = mapping.shared && mapping.writable;
    // A user who may execute a program may be unable to read it.
    const std::uint32_t access = mapping.path == program ? X_OK : writes ? R_OK | W_OK : R_OK;
    names.add(process + "/map_files/" + mapping.range, access, !writes, true);
  }
}

}  // namespace

Result<std::vector<NamedFile>> named_files(pid_t pid, bool with_content) {
  GCR_ASSIGN(const pid_t inner, pid_in_namespace(pid));
  const std::string process = fmt::format("/proc/{}", pid);
  Names names(pid, inner, with_content);
  std::error_code error;
  const std::string program = fs::read_symlink(process + "/exe", error);
  add_descriptors(pid, process, names);
  add_mappings(pid, process, program, names);
  names.add(process + "/exe", X_OK, true, true);
  names.add(process + "/cwd", X_OK, false);
  names.add(process + "/root", X_OK, false);
  return names.release();
}

Status check_restored_files(pid_t pid, const VettedFiles& vetted) {
  GCR_ASSIGN(const auto files, named_files(pid, false));
  for (const NamedFile& file : files) {
    // The restored process has a /proc of its own; what it has there of itself is left out.
    const std::string path = file.fact.path() + "/";
    if (path.starts_with("/proc/") && !is_of_process(path)) continue;
    const auto found = vetted.find(file.id);
    if (found != vetted.end() && (file.fact.access() & ~found->second) == 0) continue;
    return Error(Code::kDataLoss,
                 fmt::format("the restored process has {}, which is not what was compared",
                             file.fact.path()));
  }
  return {};
}

}  // namespace gcr::process

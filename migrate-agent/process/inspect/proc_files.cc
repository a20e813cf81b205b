// Descriptors on a procfs.
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/files.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProc = "/proc/";

std::string first_component(const std::string& path) {
  return path.substr(kProc.size(), path.find('/', kProc.size()) - kProc.size());
}

/// Whether `link` leads to a mount of the process's that is all of a procfs, at /proc.
bool is_at_proc(pid_t pid, const std::string& link) {
  struct statx status {};
  if (::statx(AT_FDCWD, link.c_str(), AT_NO_AUTOMOUNT, STATX_MNT_ID, &status) != 0) return false;
  const procfs::MountTable mounts = procfs::mounts_of(pid);
  const auto mount = mounts.find(status.stx_mnt_id);
  return mount != mounts.end() && mount->second.root == "/" && mount->second.point == "/proc";
}

/// Where the kernel has put 16 random bytes into the memory of the program when it was executed.
std::optional<off_t> random_bytes_at(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/auxv", pid), std::ios::binary);
  Elf64_auxv_t entry{};
  while (file.read(reinterpret_cast<char*>(&entry), sizeof(entry))) {
    if (entry.a_type == AT_RANDOM) return static_cast<off_t>(entry.a_un.a_val);
  }
  return std::nullopt;
}

std::string read_at(int fd, std::size_t bytes, off_t offset) {
  std::string content(bytes, '\0');
  const ssize_t got = ::pread(fd, content.data(), bytes, offset);
  content.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return content;
}

/// The mappings that `content`, the beginning of the file `name`, tells of, without what it counts.
std::string mappings_in(const std::string& name, const std::string& content) {
  std::string mappings;
  std::istringstream lines(content.substr(0, content.rfind('\n') + 1));
  for (std::string line; std::getline(lines, line);) {
    // "5581a000-5581c000 r--p ..." or "5581a000 default ..."; others begin with a word as "Rss:".
    if (std::isxdigit(static_cast<unsigned char>(line[0])) == 0 || line.find(':') < line.find(' '))
      continue;
    mappings += name == "numa_maps" ? line.substr(0, line.find(' ')) : line;
    mappings += '\n';
  }
  return mappings;
}

/// Whether two beginnings of the file `name` show the same memory. How much of a mapping is in
/// memory, and how many processes share it, changes with what others do, and with it how many
/// mappings fit.
bool are_of_one_memory(const std::string& name, const std::string& a, const std::string& b) {
  if (name != "smaps" && name != "smaps_rollup" && name != "numa_maps") return !a.empty() && a == b;
  const std::string of_a = mappings_in(name, a), of_b = mappings_in(name, b);
  return !of_a.empty() && !of_b.empty() && (of_a.starts_with(of_b) || of_b.starts_with(of_a));
}

/// Whether `file`, one that shows the memory of a process, shows the memory that the process has
/// now: an execve begins a new one, and the file keeps to the old one. Each execve draws addresses,
/// and random bytes, which only the same memory has.
bool shows_present_memory(pid_t pid, int file, const std::string& name) {
  constexpr std::size_t kRandomBytes = 16;
  constexpr std::size_t kCompared = 4096;
  const UniqueFd now(
      ::open(fmt::format("/proc/{}/{}", pid, name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const auto random = random_bytes_at(pid);
  if (!now || !random) return false;
  if (name == "mem") {
    const std::string bytes = read_at(file, kRandomBytes, *random);
    return bytes.size() == kRandomBytes && bytes == read_at(now.get(), kRandomBytes, *random);
  }
  if (name == "pagemap") {
    constexpr std::uint64_t kPresentOrSwapped = std::uint64_t{3} << 62;
    std::uint64_t entry = 0;
    const off_t at = *random / ::getpagesize() * static_cast<off_t>(sizeof(entry));
    return ::pread(file, &entry, sizeof(entry), at) == sizeof(entry) &&
           (entry & kPresentOrSwapped) != 0;
  }
  return are_of_one_memory(name, read_at(file, kCompared, 0), read_at(now.get(), kCompared, 0));
}

bool shows_memory(const std::string& name) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "auxv",      "clear_refs", "environ", "maps",        "mem",
      "numa_maps", "pagemap",    "smaps",   "smaps_rollup"};
  return std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace

bool is_of_process(const std::string& path) {
  if (!path.starts_with(kProc)) return false;
  const std::string first = first_component(path);
  return !first.empty() &&
         std::ranges::all_of(first, [](unsigned char c) { return std::isdigit(c); });
}

std::string why_not_by_name(pid_t pid, int number, const std::string& link) {
  std::error_code error;
  std::string path = fs::read_symlink(link, error);
  if (error) return "which cannot be looked at";
  if (path.ends_with(kDeleted))
    path.resize(path.size() - kDeleted.size());  // of one that has ended
  if (!is_at_proc(pid, link)) return "on a procfs that is not the one at /proc";
  if (!is_of_process(path)) return "";
  const auto numbers = procfs::namespace_pids(std::to_string(pid));
  if (numbers.empty() || first_component(path) != std::to_string(numbers.back())) {
    return "of another process";
  }
  const std::string name = fs::path(path).filename();
  if (!shows_memory(name)) return "";
  const auto process = procfs::open_pidfd(pid);
  const UniqueFd file(
      process ? static_cast<int>(::syscall(SYS_pidfd_getfd, process->get(), number, 0)) : -1);
  if (file && shows_present_memory(pid, file.get(), name)) return "";
  return "of memory that the process had before an execve, or cannot be read";
}

}  // namespace gcr::process

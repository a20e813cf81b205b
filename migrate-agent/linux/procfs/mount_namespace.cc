#include "migrate-agent/linux/procfs/mount_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <vector>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::procfs {
namespace {

constexpr ino_t kProcRootInode = 1;  // PROC_ROOT_INO of the kernel
/// CRIU reads the cached features of the kernel from this file.
constexpr char kCache[] = "/run/criu.kdat";
/// libdrm, as distributions and AMD build it, parses these files for the names of GPUs.
constexpr const char* kGpuNames[] = {"/usr/share/libdrm/amdgpu.ids",
                                     "/opt/amdgpu/share/libdrm/amdgpu.ids"};
constexpr char kRenderNodes[] = "/dev/dri";
constexpr unsigned kDrmMajor = 226;
/// The parts of sysfs that are read: links in the first three lead into the last one.
constexpr std::string_view kReadOfSys[] = {"/sys/bus", "/sys/class", "/sys/dev", "/sys/devices"};
/// Parts of it that contain no GPU, over which container engines mount something.
constexpr std::string_view kUnreadOfSys[] = {"/sys/devices/system",
                                             "/sys/devices/virtual/powercap"};

std::string path_of(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

Error refused(const std::string& what) {
  return Error(Code::kRefused, "in the mount namespace of the process " + what);
}

bool is_same(const FileId& one, const FileId& other) { return one != FileId() && one == other; }

/// Opens `path` as a process with that root directory sees it; no link leads out of it.
UniqueFd open_in(const UniqueFd& root, const char* path) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, root.get(), path, &how, sizeof(how))));
}

bool is_below(const MountTable& table, std::uint64_t id, std::uint64_t top) {
  // A mount whose parent is itself would make this loop endless.
  for (std::size_t steps = 0; steps < table.size() && id != top; ++steps) {
    const auto at = table.find(id);
    if (at == table.end()) return false;
    id = at->second.parent;
  }
  return id == top;
}

/// Returns whether a mount does not change what CRIU reads: it is a part of the same procfs in its
/// own place, as for read-only parts, or it covers a file that CRIU never reads.
bool is_harmless(const Mount& mount, const Mount& proc) {
  // Container engines cover most of these.
  static constexpr std::array<std::string_view, 13> kUnread = {"/proc/acpi",
                                                               "/proc/asound",
                                                               "/proc/interrupts",
                                                               "/proc/kallsyms",
                                                               "/proc/kcore",
                                                               "/proc/keys",
                                                               "/proc/kmsg",
                                                               "/proc/latency_stats",
                                                               "/proc/sched_debug",
                                                               "/proc/scsi",
                                                               "/proc/sys/fs/binfmt_misc",
                                                               "/proc/timer_list",
                                                               "/proc/timer_stats"};
  if (std::ranges::find(kUnread, mount.point) != kUnread.end()) return true;
  return mount.device == proc.device && mount.point == proc.point + mount.root;
}

/// Succeeds if mount `id` is /proc and no mount in it hides or adds anything.
Status check_mounts(pid_t pid, std::uint64_t id) {
  const MountTable table = mounts_of(pid);
  const auto proc = table.find(id);
  if (proc == table.end() || proc->second.point != "/proc") return refused("/proc is not mounted");
  for (const auto& [other, mount] : table) {
    if (other == id || !is_below(table, other, id) || is_harmless(mount, proc->second)) continue;
    return refused("something is mounted over " + mount.point);
  }
  return {};
}

/// Returns whether `proc` shows the PID namespace of `pid`. A procfs numbers a process from its own
/// namespace inwards: once if the process is in that namespace.
bool shows_pid_namespace_of(pid_t pid, const UniqueFd& proc) {
  const std::vector<pid_t> numbers = namespace_pids(std::to_string(pid));
  if (numbers.empty()) return false;
  const std::string there =
      "self/fd/" + std::to_string(proc.get()) + "/" + std::to_string(numbers.back());
  return namespace_pids(there).size() == 1 &&
         is_same(id_of(path_of(pid, "ns/pid")), id_of("/proc/" + there + "/ns/pid"));
}

Status check_proc(pid_t pid, const UniqueFd& root) {
  const UniqueFd proc = open_in(root, "proc");
  struct statfs system {};
  struct stat status {};
  struct statx mount {};
  if (!proc || ::fstatfs(proc.get(), &system) != 0 || ::fstat(proc.get(), &status) != 0 ||
      ::statx(proc.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &mount) != 0) {
    return Error::from_errno(errno, "cannot examine /proc in the mount namespace of the process");
  }
  if (system.f_type != PROC_SUPER_MAGIC || status.st_ino != kProcRootInode) {
    return refused("/proc is not a procfs");
  }
  GCR_TRY(check_mounts(pid, mount.stx_mnt_id));
  if (shows_pid_namespace_of(pid, proc)) return {};
  return refused("/proc shows another PID namespace");
}

Status check_is_ours_or_missing(const UniqueFd& root, const char* path) {
  const UniqueFd theirs = open_in(root, path);
  if (!theirs && errno == ENOENT) return {};
  struct stat ours {};
  if (theirs && ::lstat(path, &ours) == 0 && is_same(id_of(theirs), {ours.st_dev, ours.st_ino})) {
    return {};
  }
  return refused(std::string(path) + " is not this host's");
}

bool is_in(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

/// Succeeds if /sys is a sysfs and nothing is mounted over the parts that are read.
Status check_sys(pid_t pid, const UniqueFd& root) {
  const UniqueFd sys = open_in(root, "sys");
  struct statfs system {};
  struct statx mount {};
  if (!sys || ::fstatfs(sys.get(), &system) != 0 ||
      ::statx(sys.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &mount) != 0) {
    return Error::from_errno(errno, "cannot examine /sys in the mount namespace of the process");
  }
  const MountTable table = mounts_of(pid);
  const auto top = table.find(mount.stx_mnt_id);
  if (system.f_type != SYSFS_MAGIC || top == table.end() || top->second.root != "/") {
    return refused("/sys is not a sysfs");
  }
  for (const auto& [id, one] : table) {
    const auto is_there = [&point = one.point](std::string_view directory) {
      return is_in(point, directory);
    };
    if (id == top->first || std::ranges::none_of(kReadOfSys, is_there) ||
        std::ranges::any_of(kUnreadOfSys, is_there)) {
      continue;
    }
    if (one.device == top->second.device && one.point == "/sys" + one.root) continue;
    return refused("something is mounted over " + one.point);
  }
  return {};
}

/// Succeeds if `path` is missing or is this character device.
Status check_device(const UniqueFd& root, const std::string& path, dev_t device) {
  const UniqueFd theirs = open_in(root, path.c_str());
  if (!theirs && errno == ENOENT) return {};
  struct stat status {};
  if (theirs && ::fstat(theirs.get(), &status) == 0 && S_ISCHR(status.st_mode) &&
      status.st_rdev == device) {
    return {};
  }
  return refused(path + " is not the kernel's");
}

/// Checks each render node against the number in its name.
Status check_render_nodes(pid_t pid, const UniqueFd& root) {
  constexpr std::string_view kNode = "renderD";
  const UniqueFd directory = open_in(root, kRenderNodes);
  if (!directory && errno == ENOENT) return {};
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return refused(std::string(kRenderNodes) + " is not a directory");
  }
  const std::string seen = "/proc/self/fd/" + std::to_string(directory.get());
  std::error_code error;
  for (std::filesystem::directory_iterator it(seen, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kNode)) continue;
    unsigned minor = 0;
    const char* const last = name.data() + name.size();
    const auto number = std::from_chars(name.data() + kNode.size(), last, minor);
    if (number.ec != std::errc() || number.ptr != last) continue;
    GCR_TRY(check_device(root, std::string(kRenderNodes) + "/" + name, makedev(kDrmMajor, minor)));
  }
  if (!error) return {};
  return Error::from_errno(error.value(),
                           "cannot examine the GPUs of process " + std::to_string(pid));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; (end = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

bool is_octal(std::string_view text) {
  return std::ranges::all_of(text, [](char digit) { return digit >= '0' && digit <= '7'; });
}

/// Without the kernel's escapes, three octal digits after a backslash.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view code = text.substr(at + 1, 3);
    if (text[at] != '\\' || code.size() < 3 || !is_octal(code)) {
      plain += text[at];
      continue;
    }
    plain += static_cast<char>((code[0] - '0') * 64 + (code[1] - '0') * 8 + (code[2] - '0'));
    at += code.size();
  }
  return plain;
}

bool has_option(std::string_view options, std::string_view name) {
  const auto all = split(options, ',');
  return std::ranges::find(all, name) != all.end();
}

/// A line of mountinfo (proc_pid_mountinfo(5)); none if it is not one.
std::optional<Mount> read_mount(std::string_view line, std::uint64_t& id) {
  // 36 35 98:0 ROOT POINT OPTIONS … - TYPE SOURCE SUPER-OPTIONS
  constexpr std::string_view kDash = " - ";
  const std::size_t dash = line.find(kDash);
  if (dash == std::string_view::npos) return std::nullopt;
  const auto before = split(line.substr(0, dash), ' ');
  const auto after = split(line.substr(dash + kDash.size()), ' ');
  if (before.size() < 6 || after.size() < 3) return std::nullopt;
  Mount mount;
  const auto number = [](std::string_view text, std::uint64_t& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (!number(before[0], id) || !number(before[1], mount.parent)) return std::nullopt;
  mount.device = before[2];
  mount.root = unescaped(before[3]);
  mount.point = unescaped(before[4]);
  mount.type = after[0];
  mount.source = unescaped(after[1]);
  mount.options = after[2];
  mount.read_only = has_option(before[5], "ro") || has_option(mount.options, "ro");
  return mount;
}

Result<UniqueFd> root_of(pid_t pid) {
  UniqueFd root(::open(path_of(pid, "root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root) return root;
  return Error::from_errno(errno,
                           "cannot examine the root directory of process " + std::to_string(pid));
}

}  // namespace

MountTable mounts_of(pid_t pid) {
  MountTable table;
  std::istringstream lines(read_text(path_of(pid, "mountinfo")));
  for (std::string line; std::getline(lines, line);) {
    std::uint64_t id = 0;
    std::optional<Mount> mount = read_mount(line, id);
    if (mount) table.emplace(id, std::move(*mount));
  }
  return table;
}

std::optional<std::string> option_of(const Mount& mount, std::string_view name) {
  for (const std::string_view option : split(mount.options, ',')) {
    if (!option.starts_with(name)) continue;
    if (option.size() == name.size()) return "";
    if (option[name.size()] == '=') return unescaped(option.substr(name.size() + 1));
  }
  return std::nullopt;
}

Result<MountNamespace> MountNamespace::of(pid_t pid) {
  UniqueFd fd(::open(path_of(pid, "ns/mnt").c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) return MountNamespace(std::move(fd));
  return Error::from_errno(errno,
                           "cannot open the mount namespace of process " + std::to_string(pid));
}

bool MountNamespace::is_that_of(pid_t pid) const {
  return is_same(id_of(fd_), id_of(path_of(pid, "ns/mnt")));
}

Status MountNamespace::check_owner() const {
  const UniqueFd owner(::ioctl(fd_.get(), NS_GET_USERNS));  // the kernel closes it at exec
  if (is_same(id_of(owner), id_of("/proc/self/ns/user"))) return {};
  return Error(Code::kRefused,
               "its mount namespace belongs to a user namespace other than the agent's");
}

Status check_view(pid_t pid) {
  GCR_ASSIGN(const UniqueFd root, root_of(pid));
  GCR_TRY(check_proc(pid, root));
  return check_is_ours_or_missing(root, kCache);
}

Status check_view_of_gpus(pid_t pid) {
  GCR_ASSIGN(const UniqueFd root, root_of(pid));
  GCR_TRY(check_sys(pid, root));
  struct stat ours {};
  if (::lstat(kComputeDevice, &ours) != 0) ours = {};
  GCR_TRY(check_device(root, kComputeDevice, ours.st_rdev));
  GCR_TRY(check_render_nodes(pid, root));
  for (const char* const names : kGpuNames) GCR_TRY(check_is_ours_or_missing(root, names));
  return {};
}

}  // namespace gcr::procfs

#include "migrate-agent/process/layer/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "migrate-agent/process/layer/beneath.h"

namespace gcr::layer {
namespace {

using procfs::Mount;
using procfs::MountTable;

constexpr char kSharedMemory[] = "/dev/shm";

/// Directories that the runtime fills anew in each container.
constexpr std::array<std::string_view, 3> kOfRuntime{"/dev", "/proc", "/sys"};

bool is_in(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

bool is_of_runtime(std::string_view point) {
  return point != kSharedMemory &&
         std::ranges::any_of(kOfRuntime, [point](auto top) { return is_in(point, top); });
}

std::uint64_t mount_id_of(const UniqueFd& held) {
  struct statx status {};
  return ::statx(held.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &status) == 0 ? status.stx_mnt_id : 0;
}

/// Opens a mount point below the container's root, with what is mounted there. None if a link leads
/// there.
UniqueFd open_point(const UniqueFd& root, const std::string& point) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(
      static_cast<int>(::syscall(SYS_openat2, root.get(), point.c_str(), &how, sizeof(how))));
}

/// Overlayfs takes a character after a backslash as it is.
std::string without_backslashes(const std::string& option) {
  std::string plain;
  for (std::size_t at = 0; at < option.size(); ++at) {
    if (option[at] == '\\' && at + 1 < option.size()) ++at;
    plain += option[at];
  }
  return plain;
}

Error unsupported(std::string what) { return Error(Code::kUnsupported, std::move(what)); }

class Finder {
 public:
  Finder(pid_t init, UniqueFd root) : root_(std::move(root)), mounts_(procfs::mounts_of(init)) {
    for (const auto& [id, mount] : procfs::mounts_of(::getpid())) {
      host_.insert(mount.device);
      if (mount.point == "/") host_roots_.insert({mount.device, mount.root});
    }
  }

  Result<Trees> run() {
    const std::uint64_t root_id = mount_id_of(root_);
    const auto top = mounts_.find(root_id);
    if (top == mounts_.end() || top->second.point != "/") {
      return unsupported("the root directory of the container is not the root of a mount");
    }
    has_files_of_host_ = is_root_of_host(top->second);
    if (!top->second.read_only && !has_files_of_host_) GCR_TRY(add_root(top->second));
    for (const auto& [id, mount] : mounts_) {
      if (id != root_id && !is_of_runtime(mount.point) && !is_hidden(id, mount)) add(id, mount);
    }
    std::ranges::sort(found_.trees, {}, &Tree::point);
    return std::move(found_);
  }

 private:
  /// Whether the container has the files of this host, as a job with a network of its own has.
  bool is_root_of_host(const Mount& mount) const {
    return host_roots_.contains({mount.device, mount.root});
  }

  Status add_root(const Mount& mount) {
    if (mount.type != "overlay" || mount.root != "/") {
      return unsupported(fmt::format(
          "the root file system of the container is {} {}; only the writable layer of an overlay "
          "can be carried",
          mount.type, mount.source));
    }
    // A container that may mount could name any directory of the host as an upper directory.
    if (!host_.contains(mount.device)) {
      return unsupported("the overlay at the root of the container is not mounted on this host");
    }
    GCR_ASSIGN(UniqueFd upper, open_upper(mount));
    UniqueFd view(::openat(root_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!view) return Error::from_errno(errno, "cannot open the root of the container");
    const bool by_users = procfs::option_of(mount, "userxattr").has_value();
    found_.trees.push_back(Tree{"/", std::move(view), std::move(upper),
                                by_users ? "user.overlay." : "trusted.overlay."});
    return {};
  }

  Result<UniqueFd> open_upper(const Mount& mount) {
    const auto option = procfs::option_of(mount, "upperdir");
    if (!option) return unsupported("the overlay at the root of the container has no upper layer");
    const std::string path = without_backslashes(*option);
    const std::string doing = fmt::format("cannot open {}, the container's writable layer", path);
    if (!path.starts_with('/')) return unsupported(doing + ": the name is relative");
    UniqueFd upper(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!upper) return Error::from_errno(errno, doing);
    // The root of an overlay has the inode number of its upper directory.
    if (procfs::id_of(upper).second == procfs::id_of(root_).second) return upper;
    return unsupported(doing + ": another directory has this name now");
  }

  /// Whether another mount covers it.
  bool is_hidden(std::uint64_t id, const Mount& mount) const {
    return std::ranges::any_of(mounts_, [&](const auto& other) {
      return other.second.parent == id && other.second.point == mount.point;
    });
  }

  /// Engines mount /dev/shm outside of the container, with this source. The host's has another.
  bool is_private(const Mount& mount) const {
    return !host_.contains(mount.device) || (mount.point == kSharedMemory && mount.source == "shm");
  }

  void add(std::uint64_t id, const Mount& mount) {
    if (mount.type == "tmpfs" && mount.root == "/" && !has_files_of_host_ && is_private(mount) &&
        add_tmpfs(id, mount)) {
      return;
    }
    found_.volumes.push_back(
        Volume{mount.point, mount.type, mount.source, mount.root, mount.device, mount.read_only});
  }

  /// False if it is a volume. A file system that is mounted twice is one tree.
  bool add_tmpfs(std::uint64_t id, const Mount& mount) {
    if (mount.read_only) return false;
    UniqueFd view = open_point(root_, mount.point);
    if (!view || mount_id_of(view) != id || !devices_.insert(mount.device).second) return false;
    found_.trees.push_back(Tree{mount.point, std::move(view), {}, {}});
    return true;
  }

  const UniqueFd root_;
  const MountTable mounts_;
  std::set<std::string> host_;  ///< file systems that the host has mounted
  std::set<std::pair<std::string, std::string>> host_roots_;  ///< their device and directory
  std::set<std::string> devices_;                             ///< of trees
  bool has_files_of_host_ = false;  ///< then its mounts are copies of mounts of the host
  Trees found_;
};

}  // namespace

Result<Trees> trees_of(pid_t init) {
  UniqueFd root = procfs::hold_root(init);
  if (!root) return Error::from_errno(errno, fmt::format("cannot open the root of {}", init));
  return Finder(init, std::move(root)).run();
}

bool is_carried(const Trees& trees, const std::string& path) {
  const auto is_in = [&path](const std::string& point) {
    return point == "/" || path == point || path.starts_with(point + "/");
  };
  const Tree* tree = nullptr;
  std::size_t longest = 0;
  for (const Tree& one : trees.trees) {
    if (!is_in(one.point) || one.point.size() < longest) continue;
    tree = &one;
    longest = one.point.size();
  }
  const bool is_in_volume = std::ranges::any_of(trees.volumes, [&](const Volume& volume) {
    return volume.point.size() > longest && is_in(volume.point);
  });
  if (tree == nullptr || is_in_volume) return false;
  if (!tree->is_overlay()) return true;
  const std::size_t name = path.find_first_not_of('/');
  return name != path.npos && static_cast<bool>(hold_beneath(tree->upper, path.substr(name)));
}

const Tree* find(const Trees& trees, std::string_view point) {
  const auto found = std::ranges::find(trees.trees, point, &Tree::point);
  return found == trees.trees.end() ? nullptr : &*found;
}

}  // namespace gcr::layer

#include "migrate-agent/transfer/images/scratch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::images {
namespace {

// glibc has these since 2.36, in a header that conflicts with the kernel's.
template <class... Arguments>
UniqueFd open_by(long call, Arguments... arguments) {
  return UniqueFd(static_cast<int>(::syscall(call, arguments...)));
}
bool set(int context, const char* key, const std::string& value) {
  return ::syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
}
bool act(int context, unsigned command) {
  return ::syscall(SYS_fsconfig, context, command, nullptr, nullptr, 0) == 0;
}

}  // namespace

Result<ScratchDirectory> ScratchDirectory::create(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    return Error::from_errno(error.value(),
                             fmt::format("cannot create {}", path.parent_path().string()));
  }
  Reserve reserve;
  for (UniqueFd& fd : reserve) {
    fd.reset(::open("/", O_PATH | O_CLOEXEC));
    if (!fd) return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  if (::mkdir(path.c_str(), 0700) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  return ScratchDirectory(path, std::move(reserve));
}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  reserve_ = {};
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) spdlog::warn("cannot remove {}: {}", path_.string(), error.message());
}

Result<ImageMemory> ImageMemory::create(std::uint64_t max_bytes) {
  const UniqueFd context = open_by(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
  UniqueFd root;
  if (context && set(context.get(), "size", std::to_string(max_bytes)) &&
      set(context.get(), "mode", "0700") && act(context.get(), FSCONFIG_CMD_CREATE)) {
    root = open_by(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                   MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  }
  if (!root) {
    return Error::from_errno(
        errno, fmt::format("cannot make a tmpfs of {} for images", format_bytes(max_bytes)));
  }
  return ImageMemory(std::move(root));
}

Status ImageMemory::resize(std::uint64_t max_bytes) {
  const UniqueFd context = open_by(SYS_fspick, root_.get(), "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
  if (context && set(context.get(), "size", std::to_string(max_bytes)) &&
      act(context.get(), FSCONFIG_CMD_RECONFIGURE)) {
    return {};
  }
  return Error::from_errno(
      errno, fmt::format("cannot make the images' tmpfs {} large", format_bytes(max_bytes)));
}

std::filesystem::path ImageMemory::path() const {
  return fmt::format("/proc/self/fd/{}", root_.get());
}

}  // namespace gcr::images

#include "tests/softgpu/engine/device.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "src/base/units.h"
#include "tests/softgpu/engine/mapping.h"

namespace gcr::softgpu {
namespace {

constexpr char kDefaultDevices[] =
    "GPU-50f76b75-0000-4000-8000-000000000000:1G,GPU-50f76b7500000000:1G";
/// Devices and store, each on a line, for machines that belong to this project.
constexpr char kSettingsFile[] = "/etc/softgpu";
constexpr char kDefaultStore[] = "/dev/shm/softgpu";
constexpr char kHostFileName[] = "softgpu-host";

std::uint64_t parse_size(const std::string& text) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
  switch (*end) {
    case 'G':
      return value * kGiB;
    case 'M':
      return value * kMiB;
    case 'K':
      return value * kKiB;
    case '\0':
      return value;
    default:
      return 0;
  }
}

struct DeviceName {
  Vendor vendor;
  Uuid uuid;
};

std::optional<DeviceName> parse_name(const std::string& text) {
  if (const auto uuid = Uuid::parse(text)) return DeviceName{Vendor::kNvidia, *uuid};
  const std::string digits = text.substr(text.starts_with("GPU-") ? 4 : 0);
  DeviceName name{Vendor::kAmd, {}};
  if (digits.size() != name.uuid.bytes.size() ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  std::ranges::copy(digits, name.uuid.bytes.begin());
  return name;
}

bool is_mount_point(const std::string& path, const std::string& parent) {
  struct stat own {};
  struct stat above {};
  return ::stat(path.c_str(), &own) == 0 && ::stat(parent.c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

/// Huge pages make a large device several times faster; not every kernel has them for tmpfs.
bool mount_tmpfs(const std::string& path, std::uint64_t bytes) {
  const std::string size = "mode=1777,size=" + std::to_string(bytes);
  for (const std::string& options : {size + ",huge=within_size", size}) {
    if (::mount("softgpu", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) == 0) {
      return true;
    }
  }
  return false;
}

/// Two processes that start at once must not mount twice: the store's directory is the lock.
void mount_once(const std::string& path, const std::string& store, std::uint64_t bytes) {
  UniqueFd lock(::open(store.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock) ::flock(lock.get(), LOCK_EX);
  if (!is_mount_point(path, store)) mount_tmpfs(path, bytes);
}

void make_directories(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    ::mkdir(path.substr(0, at).c_str(), 0777);
  }
  ::mkdir(path.c_str(), 0777);
}

/// The variable's value, or else that line of the machine's file, or else the default.
std::string setting(const char* variable, int line, const char* otherwise) {
  const char* value = std::getenv(variable);
  if (value != nullptr && *value != '\0') return value;
  std::ifstream file(kSettingsFile);
  std::string text;
  for (int at = 0; at <= line; ++at) {
    if (!std::getline(file, text) || text.empty()) return otherwise;
  }
  return text;
}

}  // namespace

Device& Device::operator=(Device&& other) noexcept {
  uuid = other.uuid;
  total_bytes = other.total_bytes;
  directory = std::move(other.directory);
  file_system = other.file_system;
  mounted = other.mounted;
  first = other.first;
  place = other.place;
  used_bytes = other.used_bytes.load();
  return *this;
}

Result Device::open(const std::string& store, const std::string& name) {
  const std::string path = store + "/" + name;
  make_directories(path);
  if (!is_mount_point(path, store)) mount_once(path, store, total_bytes);
  mounted = is_mount_point(path, store);
  directory.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0) return Result::kSystemNotReady;
  file_system = status.st_dev;
  if (mounted) {
    struct statfs space {};
    if (::fstatfs(directory.get(), &space) != 0) return Result::kSystemNotReady;
    total_bytes = space.f_blocks * static_cast<std::uint64_t>(space.f_bsize);
  }
  return Result::kSuccess;
}

Result Device::adopt(UniqueFd tmpfs_directory) {
  struct stat status {};
  if (::fstat(tmpfs_directory.get(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return Result::kInvalidValue;
  }
  directory = std::move(tmpfs_directory);
  file_system = status.st_dev;
  return Result::kSuccess;
}

Result Device::create_file(std::uint64_t bytes, UniqueFd* file) {
  if (!mounted && used_bytes + bytes > total_bytes) return Result::kOutOfMemory;
  UniqueFd fresh(::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fresh) return Result::kOutOfMemory;
  if (::fallocate(fresh.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return Result::kOutOfMemory;
  }
  used_bytes += bytes;
  *file = std::move(fresh);
  return Result::kSuccess;
}

std::uint64_t Device::free_bytes() const {
  if (!mounted) return total_bytes - std::min<std::uint64_t>(used_bytes, total_bytes);
  struct statfs space {};
  if (::fstatfs(directory.get(), &space) != 0) return 0;
  return space.f_bavail * static_cast<std::uint64_t>(space.f_bsize);
}

Result create_host_file(std::uint64_t bytes, UniqueFd* file) {
  UniqueFd fresh(::memfd_create(kHostFileName, MFD_CLOEXEC));
  if (!fresh || ::fallocate(fresh.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return Result::kOutOfMemory;
  }
  *file = std::move(fresh);
  return Result::kSuccess;
}

bool is_host_file(int file) {
  char target[64];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof(target));
  return length > 0 &&
         std::string_view(target, length) == "/memfd:" + std::string(kHostFileName) + " (deleted)";
}

Result DeviceFile::open() {
  const char* path = std::getenv("SOFTGPU_DEVICE_FILE");
  if (path == nullptr || *path == '\0') return Result::kSuccess;
  UniqueFd file(::open(path, O_RDWR | O_CLOEXEC));
  if (!file) return Result::kSystemNotReady;
  void* page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return Result::kSystemNotReady;
  page_ = UniqueMapping(page, kPageBytes);
  file_ = std::move(file);
  return Result::kSuccess;
}

void DeviceFile::close() {
  page_.reset();
  file_.reset();
}

void DeviceFile::leave_open() {
  page_.reset();
  (void)file_.release();
}

Result DeviceTable::load_from_environment() {
  const std::string store = setting("SOFTGPU_STORE", 1, kDefaultStore);
  std::istringstream items(setting("SOFTGPU_DEVICES", 0, kDefaultDevices));
  std::string item;
  while (std::getline(items, item, ',')) {
    const std::size_t colon = item.rfind(':');
    const auto name = parse_name(item.substr(0, colon));
    if (colon == std::string::npos || !name || count == kMaxDevices) {
      return Result::kInvalidDevice;
    }
    if (name->vendor != vendor) continue;
    Device& device = devices[count];
    device.uuid = name->uuid;
    device.place = count;
    device.total_bytes = parse_size(item.substr(colon + 1));
    if (std::getenv("SOFTGPU_SAW_SOME") != nullptr) device.first = device.uuid;
    if (device.total_bytes == 0) return Result::kInvalidDevice;
    if (const Result result = device.open(store, name_of(device.uuid))) {
      return result;
    }
    ++count;
  }
  return count == 0 ? Result::kNoDevice : Result::kSuccess;
}

std::string DeviceTable::name_of(const Uuid& uuid) const {
  return vendor == Vendor::kAmd ? std::string(uuid.bytes.begin(), uuid.bytes.end())
                                : uuid.to_string();
}

int DeviceTable::find(const Uuid& uuid) const {
  for (int i = 0; i < count; ++i) {
    if (devices[i].uuid == uuid) return i;
  }
  return -1;
}

int DeviceTable::holder_of(int file) const {
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return -1;
  for (int i = 0; i < count; ++i) {
    if (devices[i].mounted && devices[i].file_system == status.st_dev) return i;
  }
  // Plain directories share a file system: the file's path identifies the device.
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof(path));
  if (length <= 0) return -1;
  for (int i = 0; i < count; ++i) {
    if (std::string_view(path, length).find("/" + name_of(devices[i].uuid) + "/") !=
        std::string_view::npos) {
      return i;
    }
  }
  return -1;
}

}  // namespace gcr::softgpu

#include "migrate-agent/process/inspect/files.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/sysmacros.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <tuple>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/elf.h"
#include "migrate-agent/process/inspect/named_files.h"

namespace gcr::process {
namespace {

/// Device, inode, times of change, size; whether larger ones were digested too.
using FileVersion =
    std::tuple<dev_t, ino_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, off_t, bool>;

struct Content {
  std::string build_id;
  std::string sha256;
};

std::string hash_content(int fd) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return "";
  std::vector<char> buffer(1 << 20);
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), offset);
    // Files of /proc have no size, and some of them no end.
    if (got < 0 || offset > kMaxMappedBytes) return "";
    if (got == 0) break;
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(got));
    offset += got;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) return "";
  return {reinterpret_cast<const char*>(digest.data()), size};
}

/// The content of a regular file; nothing of one that cannot be read.
Content read_content(const UniqueFd& held, bool mapped) {
  const UniqueFd fd = procfs::open_regular(held);
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return {};
  Content content{elf_build_id(fd.get()), ""};
  const bool larger = mapped && content.build_id.empty() && status.st_size <= kMaxMappedBytes;
  if (status.st_size <= kMaxComparedBytes || larger) content.sha256 = hash_content(fd.get());
  return content;
}

/// Cached until the file changes. The cache belongs to the process: a worker asks for the same
/// files in preflight and again in the switchover.
Content content_of(const UniqueFd& held, const struct stat& status, bool mapped) {
  static std::mutex mutex;
  static std::map<FileVersion, Content> known;
  const FileVersion version{
      status.st_dev,         status.st_ino,          status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
      status.st_ctim.tv_sec, status.st_ctim.tv_nsec, status.st_size,        mapped};
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find(version);
    if (found != known.end()) return found->second;
  }
  Content content = read_content(held, mapped);
  const std::lock_guard lock(mutex);
  return known[version] = std::move(content);
}

/// "00400000-00401000" of /proc/PID/maps as /proc/PID/map_files has it, without leading zeros.
std::string map_files_name(const std::string& range) {
  char* end = nullptr;
  const auto from = std::strtoull(range.c_str(), &end, 16);
  const auto to = *end == '-' ? std::strtoull(end + 1, nullptr, 16) : 0;
  return fmt::format("{:x}-{:x}", from, to);
}

}  // namespace

std::vector<Mapping> named_mappings(pid_t pid, std::string_view with) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  std::vector<Mapping> mappings;
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> seen;
  for (std::string line; std::getline(file, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos || line.find(with, slash) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string range, permissions, offset, device;
    Mapping mapping{};
    if (!(fields >> range >> permissions >> offset >> device >> mapping.inode)) continue;
    const std::size_t colon = device.find(':');
    if (colon == std::string::npos) continue;
    mapping.path = line.substr(slash);
    mapping.range = map_files_name(range);
    mapping.shared = permissions.size() > 3 && permissions[3] == 's';
    mapping.writable = permissions.size() > 1 && permissions[1] == 'w';
    mapping.deleted = mapping.path.ends_with(kDeleted);
    if (mapping.deleted) mapping.path.resize(mapping.path.size() - kDeleted.size());
    mapping.device = makedev(std::strtoul(device.c_str(), nullptr, 16),
                             std::strtoul(device.c_str() + colon + 1, nullptr, 16));
    const auto [known, is_new] =
        seen.emplace(std::pair(mapping.path, mapping.inode), mappings.size());
    if (is_new) {
      mappings.push_back(mapping);
    } else {
      mappings[known->second].shared |= mapping.shared;
      mappings[known->second].writable |= mapping.writable;
    }
  }
  return mappings;
}

void describe_file(const std::string& path, const UniqueFd& held, const struct stat& status,
                   WantedContent content, proto::FileFact& fact) {
  fact.set_path(path);
  fact.set_mode(status.st_mode);
  fact.set_uid(status.st_uid);
  fact.set_gid(status.st_gid);
  if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode)) fact.set_device(status.st_rdev);
  if (!content.any || !S_ISREG(status.st_mode)) return;
  fact.set_size_bytes(static_cast<std::uint64_t>(status.st_size));
  const Content found = content_of(held, status, content.mapped);
  fact.set_build_id(found.build_id);
  fact.set_sha256(found.sha256);
}

}  // namespace gcr::process

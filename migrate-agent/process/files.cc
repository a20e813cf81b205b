#include "migrate-agent/process/files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <tuple>

#include "migrate-agent/process/elf.h"
#include "migrate-agent/process/inspect.h"
#include "migrate-agent/process/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

constexpr std::string_view kDeleted = " (deleted)";
constexpr off_t kMaxHashedBytes = 256 << 20;

using FileVersion = std::tuple<dev_t, ino_t, std::int64_t, std::int64_t, off_t>;

std::string hash_content(int fd) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return "";
  std::vector<char> buffer(1 << 20);
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), offset);
    // Files of /proc have no size, and some of them no end.
    if (got < 0 || offset > kMaxHashedBytes) return "";
    if (got == 0) break;
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(got));
    offset += got;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) return "";
  return {reinterpret_cast<const char*>(digest.data()), size};
}

/// SHA-256 of an open file, remembered until the file changes. The cache belongs to the process: a
/// worker asks for the same files in preflight and again before the switchover.
std::string sha256_of(int fd, const struct stat& status) {
  static std::mutex mutex;
  static std::map<FileVersion, std::string> known;
  const FileVersion version{status.st_dev, status.st_ino, status.st_mtim.tv_sec,
                            status.st_mtim.tv_nsec, status.st_size};
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find(version);
    if (found != known.end()) return found->second;
  }
  std::string digest = hash_content(fd);
  if (!digest.empty()) {
    const std::lock_guard lock(mutex);
    known[version] = digest;
  }
  return digest;
}

void compare_mapped(const proto::FileFact& theirs, preflight::Findings& findings) {
  proto::FileFact ours;
  if (!describe_mapped_file(theirs.path(), theirs.path(), ours)) {
    findings.add("file-missing", theirs.path() + " is mapped by the process and is not here");
  } else if (ours.build_id() != theirs.build_id()) {
    findings.add("file-differs",
                 theirs.path() + " has build-id " +
                     (ours.build_id().empty() ? "none" : ours.build_id()) + " here and " +
                     (theirs.build_id().empty() ? "none" : theirs.build_id()) + " at the source");
  } else if (theirs.build_id().empty() && !theirs.sha256().empty() &&
             ours.sha256() != theirs.sha256()) {
    findings.add("file-differs", theirs.path() + " has other content here than at the source");
  } else if (ours.size_bytes() != theirs.size_bytes()) {
    findings.add("file-differs", theirs.path() + " has " + std::to_string(ours.size_bytes()) +
                                     " bytes here and " + std::to_string(theirs.size_bytes()) +
                                     " at the source");
  }
}

void compare_open(const proto::FileFact& theirs, preflight::Findings& findings) {
  struct stat status {};
  if (::stat(theirs.path().c_str(), &status) != 0) {
    findings.add("file-missing", theirs.path() + " is open in the process and is not here");
  } else if (theirs.size_bytes() != 0 &&
             static_cast<std::uint64_t>(status.st_size) != theirs.size_bytes()) {
    findings.add("file-differs", theirs.path() + " has " + std::to_string(status.st_size) +
                                     " bytes here and " + std::to_string(theirs.size_bytes()) +
                                     " at the source");
  }
}

}  // namespace

std::vector<Mapping> named_mappings(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  std::vector<Mapping> mappings;
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> seen;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string range, permissions, offset, device;
    Mapping mapping{};
    if (!(fields >> range >> permissions >> offset >> device >> mapping.inode)) continue;
    const std::size_t slash = line.find('/');
    const std::size_t colon = device.find(':');
    if (slash == std::string::npos || colon == std::string::npos) continue;
    mapping.path = line.substr(slash);
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

bool describe_mapped_file(const std::string& path, const std::string& real_path,
                          proto::FileFact& fact) {
  const UniqueFd fd = procfs::open_regular(procfs::hold(real_path));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return false;
  fact.set_path(path);
  fact.set_size_bytes(static_cast<std::uint64_t>(status.st_size));
  fact.set_build_id(elf_build_id(fd.get()));
  if (fact.build_id().empty() && status.st_size <= kMaxHashedBytes) {
    fact.set_sha256(sha256_of(fd.get(), status));
  }
  return true;
}

std::vector<proto::Finding> compare_files(const proto::ProcessFacts& facts) {
  preflight::Findings findings(preflight::Side::kDestination);
  for (const proto::FileFact& file : facts.mapped_files()) compare_mapped(file, findings);
  for (const proto::FileFact& file : facts.open_files()) compare_open(file, findings);
  return findings.release();
}

}  // namespace gcr::process

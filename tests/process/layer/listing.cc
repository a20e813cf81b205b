#include "tests/process/layer/listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <set>
#include <stdexcept>

#include "src/base/unique_fd.h"

namespace gcr::layer::test {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::to_string(errno));
}

std::string link_to(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

std::set<std::string> names_of(int directory) {
  DIR* const reading = ::fdopendir(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (reading == nullptr) fail("opendir");
  std::set<std::string> names;
  while (const dirent* entry = ::readdir(reading)) names.insert(entry->d_name);
  ::closedir(reading);
  names.erase(".");
  names.erase("..");
  return names;
}

std::string attributes_of(int held) {
  std::string list(65536, '\0');
  const ssize_t length = ::listxattr(link_to(held).c_str(), list.data(), list.size());
  std::map<std::string, std::string> attributes;
  for (ssize_t at = 0; at < length;) {
    const std::string name = list.c_str() + at;
    at += static_cast<ssize_t>(name.size()) + 1;
    std::string value(65536, '\0');
    const ssize_t size =
        ::getxattr(link_to(held).c_str(), name.c_str(), value.data(), value.size());
    value.resize(static_cast<std::size_t>(size));
    if (!name.starts_with("trusted.")) attributes[name] = value;
  }
  std::string text;
  for (const auto& [name, value] : attributes) {
    text += fmt::format(" {}=", name);
    for (const char byte : value) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

/// A digest that zeros before and behind a byte do not change.
std::uint64_t digest_of(int held) {
  const UniqueFd file(::open(link_to(held).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail("open");
  std::uint64_t digest = 0;
  std::string bytes(1 << 16, '\0');
  for (off_t at = 0; (at = ::lseek(file.get(), at, SEEK_DATA)) >= 0;) {
    const ssize_t count = ::pread(file.get(), bytes.data(), bytes.size(), at);
    if (count <= 0) break;
    for (ssize_t i = 0; i < count; ++i) {
      const auto byte = static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
      if (byte != 0) digest += (static_cast<std::uint64_t>(at + i) * 2654435761u + 1) * byte;
    }
    at += count;
  }
  return digest;
}

std::string target_of(int held) {
  std::string target(4096, '\0');
  const ssize_t length = ::readlinkat(held, "", target.data(), target.size());
  target.resize(static_cast<std::size_t>(length));
  return target;
}

class Lister {
 public:
  Listing run(const std::filesystem::path& root) {
    const UniqueFd top(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!top) fail("open " + root.string());
    add(top.get(), "");
    return listing_;
  }

 private:
  void add(int held, const std::string& path) {
    struct stat status {};
    if (::fstat(held, &status) != 0) fail("fstat");
    const mode_t type = status.st_mode & S_IFMT;
    std::string text = fmt::format("{:o} {}:{} {}.{:09}", status.st_mode, status.st_uid,
                                   status.st_gid, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    text += attributes_of(held);
    if (type == S_IFCHR) {
      text += fmt::format(" {}:{}", major(status.st_rdev), minor(status.st_rdev));
    }
    if (type == S_IFLNK) text += " -> " + target_of(held);
    if (type == S_IFREG) text += fmt::format(" {} {:x}", status.st_size, digest_of(held));
    if (type != S_IFDIR && status.st_nlink > 1) {
      text += " is " + first_.try_emplace({status.st_dev, status.st_ino}, path).first->second;
    }
    listing_[path] = text;
    if (type == S_IFDIR) add_all(held, path);
  }

  void add_all(int directory, const std::string& path) {
    for (const std::string& name : names_of(directory)) {
      const UniqueFd held(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (!held) fail("open " + path + "/" + name);
      struct statx mount {};
      ::statx(held.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &mount);
      if ((mount.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) add(held.get(), path + "/" + name);
    }
  }

  Listing listing_;
  std::map<std::pair<dev_t, ino_t>, std::string> first_;
};

}  // namespace

Listing listing_of(const std::filesystem::path& root) { return Lister().run(root); }

std::vector<std::string> differences(const Listing& source, const Listing& destination) {
  std::vector<std::string> found;
  for (const auto& [path, text] : source) {
    const auto there = destination.find(path);
    if (there == destination.end()) {
      found.push_back(fmt::format("{} is missing", path));
    } else if (there->second != text) {
      found.push_back(fmt::format("{} is {}\n not {}", path, there->second, text));
    }
  }
  for (const auto& [path, text] : destination) {
    if (!source.contains(path)) found.push_back(fmt::format("{} is left", path));
  }
  return found;
}

}  // namespace gcr::layer::test

// A directory on a tmpfs, files in it, and users.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "migrate-agent/linux/procfs/directory.h"
#include "proto/control.pb.h"

namespace gcr::memory_files::test {

constexpr uid_t kUser = 65'534;

class Directory {
 public:
  Directory() {
    std::string path = "/dev/shm/gcr-memory-files-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
    std::filesystem::permissions(path_, std::filesystem::perms(0777));
  }
  ~Directory() { std::filesystem::remove_all(path_); }

  std::string name(const std::string& leaf) const { return path_ / leaf; }
  const std::filesystem::path& path() const { return path_; }

  std::string write(const std::string& leaf, const std::string& content) const {
    std::ofstream(name(leaf), std::ios::binary) << content;
    return name(leaf);
  }

 private:
  std::filesystem::path path_;
};

/// Without capabilities.
inline proto::Credentials rights_of(uid_t user) {
  proto::Credentials rights;
  for (int id = 0; id < 4; ++id) {
    rights.add_uids(user);
    rights.add_gids(user);
  }
  return rights;
}

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline procfs::FileId id_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

}  // namespace gcr::memory_files::test

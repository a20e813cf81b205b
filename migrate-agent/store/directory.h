// A directory with checkpoints. Its files, in docs/checkpoint-format.md:
//   NAME.checkpoint          a signed Manifest; it exists when the checkpoint does
//   ID.voted                 the same before it is published
//   packs/ID-N.pack          contents
//   writing                  locked by whoever writes
// Directory and files are one user's alone, and every call touches them with that user's rights:
// where the user may not write, the agent does not write for them. What the directory holds is
// believed only after its signature was checked (manifest.h), or its content's name (pack.h).
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::store {

/// With whose rights files are touched.
struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// While it lives, this thread touches files as that user does, without further groups. Where this
/// process is not root, it changes nothing.
class AsOwner {
 public:
  explicit AsOwner(const Owner& owner);
  ~AsOwner();
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;

 private:
  uid_t uid_;
  gid_t gid_;
  std::vector<gid_t> groups_;
  bool changed_ = false;
};

/// Whether it may name a checkpoint: 1 to 128 of A-Z a-z 0-9 . _ -, and no dot at its beginning.
bool is_name(std::string_view name);

/// Move-only; any thread.
class Directory {
 public:
  /// Opens it, or makes it (0700) in a directory that exists. `path` is absolute. kRefused if it
  /// holds anything but checkpoints, belongs to another user, or others may write to it.
  static Result<Directory> create(const std::filesystem::path& path, const Owner& owner);

  /// Opens one that exists. kNotFound if there is none.
  static Result<Directory> open(const std::filesystem::path& path, const Owner& owner);

  const std::filesystem::path& path() const { return path_; }
  const Owner& owner() const { return owner_; }
  int fd() const { return fd_.get(); }

  /// Names of all complete checkpoints, in no order.
  Result<std::vector<std::string>> names() const;

  /// The exclusive right to write, until the descriptor is closed. kRefused if another has it.
  Result<UniqueFd> lock() const;

  /// Opens a file of the directory ("packs/x.pack"), which must be a regular one, without following
  /// links. kNotFound.
  Result<UniqueFd> open_file(const std::string& name, int flags) const;

  Status rename(const std::string& from, const std::string& to) const;
  Status remove(const std::string& name) const;  ///< success if there is none
  Status sync() const;                           ///< the directory and packs/

  /// Entries of a directory in it; "" for itself.
  Result<std::vector<std::string>> list(const std::string& directory) const;

 private:
  Directory(std::filesystem::path path, const Owner& owner, UniqueFd fd)
      : path_(std::move(path)), owner_(owner), fd_(std::move(fd)) {}

  std::filesystem::path path_;
  Owner owner_;
  UniqueFd fd_;
};

}  // namespace gcr::store

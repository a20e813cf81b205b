// A directory with checkpoints. Its files, in docs/checkpoint-format.md:
//   NAME.checkpoint          a signed Manifest; it exists when the checkpoint does
//   ID.voted                 the same before it is published: sealed
//   ID.restoring             the same while the restore ID has it for itself
//   packs/ID-N.pack          contents; without a name while they are written
//   writing                  locked by whoever writes
// Directory and files are one user's alone, and every call touches them with that user's rights:
// where the user may not write, the agent does not write for them. What the directory holds is
// believed only after its signature was checked (manifest.h), or its content's name (pack.h).
//
// Names of files are relative to the directory, and no part of them is ever a link. Everything
// blocks. Where a disk is full or a quota used up, the error is kResourceExhausted and says how
// much is free.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"
#include "store/owner.h"

namespace gcr::store {

/// Whether it may name a checkpoint: 1 to 128 of A-Z a-z 0-9 . _ -, and no dot at its beginning.
bool is_name(std::string_view name);

/// Whether a directory of checkpoints may hold an entry of that name. A file that NFS keeps for
/// whoever has it open counts.
bool is_entry(std::string_view name);

/// Move-only; any thread.
class Directory {
 public:
  /// Opens it, or makes it (0700) in a directory that exists; its name is then on the disk. `path`
  /// is absolute. kRefused if it holds anything but checkpoints, belongs to another user, or is
  /// open to others.
  static Result<Directory> create(const std::filesystem::path& path, const Owner& owner);

  /// Opens one that exists. kNotFound if there is none; kRefused if it belongs to another user, or
  /// is open to others.
  static Result<Directory> open(const std::filesystem::path& path, const Owner& owner);

  /// The same directory once more.
  Result<Directory> duplicate() const;

  const std::filesystem::path& path() const { return path_; }
  const Owner& owner() const { return owner_; }
  int fd() const { return fd_.get(); }

  /// Names of all complete checkpoints, in no order.
  Result<std::vector<std::string>> names() const;

  /// The exclusive right to write, until the descriptor is closed. kRefused if another has it;
  /// kUnsupported on a file system without locks.
  Result<UniqueFd> lock() const;

  /// Opens a file of the directory ("packs/x.pack"), which must be a regular one, without following
  /// links; makes it (0600) with O_CREAT. kNotFound; kRefused if it is not a regular file.
  Result<UniqueFd> open_file(const std::string& name, int flags) const;

  /// A new file in a folder of the directory, which has no name: nobody else can open it, and it is
  /// gone when it is closed before it has got one. No descriptor where the file system has no such
  /// files.
  Result<UniqueFd> make_unnamed(const std::string& folder) const;

  /// Gives such a file its name. kRefused if another file has it.
  Status give_name(const UniqueFd& file, const std::string& name) const;

  Result<bool> exists(const std::string& name) const;

  /// Never replaces a file: kRefused if there is one. Finishes one that was interrupted.
  Status rename(const std::string& from, const std::string& to) const;
  Status remove(const std::string& name) const;  ///< success if there is none
  Status sync() const;                           ///< the directory and packs/

  /// Removes the directory itself if it has no checkpoint and nothing of one; whether it is gone.
  /// The caller has the lock.
  bool remove_if_empty() const;

  /// Makes packs/ unless it is there.
  Status make_packs() const;

  /// Entries of a directory in it; "" for itself. None if there is no such directory.
  Result<std::vector<std::string>> list(const std::string& directory) const;

  /// An errno of a call on one of its files, as an error; for a full disk with what is free.
  Error failed(int errno_value, std::string_view doing) const;

 private:
  Directory(std::filesystem::path path, const Owner& owner, UniqueFd fd)
      : path_(std::move(path)), owner_(owner), fd_(std::move(fd)) {}

  static Result<Directory> open_checked(const std::filesystem::path& path, const Owner& owner);
  Status check_entries() const;
  Status sync_parent() const;
  Result<UniqueFd> folder_of(const std::string& name) const;

  std::filesystem::path path_;
  Owner owner_;
  UniqueFd fd_;
};

/// All of `bytes` at `offset`. Negative errno, or 0.
int write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset);

/// All of `bytes` from `offset`. kDataLoss if the file ends before; kIo.
Status read_all(int fd, std::span<std::byte> bytes, std::uint64_t offset);

/// Waits until all of the file is on disk. An errno, or 0.
int sync_file(int fd);

}  // namespace gcr::store

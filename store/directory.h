// A directory with checkpoints. Its files (docs/checkpoint-format.md):
//   NAME.checkpoint          a signed Manifest; the checkpoint exists if this file does
//   ID.voted                 the Manifest before it is published: the checkpoint is sealed
//   ID.restoring             the Manifest while the restore ID owns the checkpoint
//   packs/ID-N.pack          contents; the file has no name while it is written
//   writing                  the lock file of the writer
// The directory and its files belong to one user, and every call accesses them with that user's
// rights: the agent never writes where the user may not. Data from the directory is used only after
// its signature (manifest.h) or the name of its content (pack.h) was verified.
//
// Names of files are relative to the directory, and no part of them may be a link. All calls block.
// If a disk is full or a quota exhausted, the error is kResourceExhausted and tells how much is
// free.
#pragma once

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

/// Whether `name` is valid for a checkpoint: 1 to 128 of A-Z a-z 0-9 . _ -, not beginning with a
/// dot.
bool is_name(std::string_view name);

/// Whether a directory of checkpoints may have an entry `name`. That includes the .nfs files that
/// NFS keeps for deleted files that are still open.
bool is_entry(std::string_view name);

/// An open directory of checkpoints. Move-only; any thread.
class Directory {
 public:
  /// Opens the directory, or creates it (0700) in an existing one and makes its name durable.
  /// `path` must be absolute. kRefused if it has other entries than checkpoints, belongs to another
  /// user, or is accessible to others.
  static Result<Directory> create(const std::filesystem::path& path, const Owner& owner);

  /// Opens an existing directory. kNotFound if there is none; kRefused if it belongs to another
  /// user, or is accessible to others.
  static Result<Directory> open(const std::filesystem::path& path, const Owner& owner);

  const std::filesystem::path& path() const { return path_; }

  /// Names of all complete checkpoints, unordered.
  Result<std::vector<std::string>> names() const;

  /// Takes the exclusive lock for writing, which is held until the descriptor is closed. kRefused
  /// if another process holds it; kUnsupported on a file system without locks.
  Result<UniqueFd> lock() const;

  /// Opens a regular file of the directory ("packs/x.pack") without following links; with O_CREAT,
  /// creates it (0600). kNotFound; kRefused if it is not a regular file.
  Result<UniqueFd> open_file(const std::string& name, int flags) const;

  /// Creates a file without a name in a folder of the directory (O_TMPFILE): other processes cannot
  /// open it, and it is deleted if it is closed before it gets a name. Returns no descriptor if the
  /// file system has no such files.
  Result<UniqueFd> make_unnamed(const std::string& folder) const;

  /// Gives a file from make_unnamed() its name. kRefused if another file has that name.
  Status give_name(const UniqueFd& file, const std::string& name) const;

  Result<bool> exists(const std::string& name) const;

  /// Renames a file. Never replaces one: kRefused if `to` exists. Also completes a rename that was
  /// interrupted.
  Status rename(const std::string& from, const std::string& to) const;
  Status remove(const std::string& name) const;  ///< success if there is none
  Status sync() const;                           ///< the directory and packs/

  /// Removes the directory itself if it has no checkpoint and no part of one; returns whether it
  /// did. The caller holds the lock.
  bool remove_if_empty() const;

  /// Creates packs/ unless it exists.
  Status make_packs() const;

  /// Entries of a subdirectory, "" for the directory itself. Empty if there is no such directory.
  Result<std::vector<std::string>> list(const std::string& directory) const;

  /// Converts an errno of a call on one of the directory's files; for a full disk, adds the free
  /// bytes.
  Error failed(int errno_value, std::string_view doing) const;

 private:
  Directory(std::filesystem::path path, const Owner& owner, UniqueFd fd)
      : path_(std::move(path)), owner_(owner), fd_(std::move(fd)) {}

  Status check_entries() const;
  Status sync_parent() const;
  Result<UniqueFd> folder_of(const std::string& name) const;

  std::filesystem::path path_;
  Owner owner_;
  UniqueFd fd_;
};

/// Writes all of `bytes` at `offset`. Returns 0 or an errno.
int write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset);

/// Fills `bytes` from `offset`. kDataLoss if the file ends before; kIo.
Status read_all(int fd, std::span<std::byte> bytes, std::uint64_t offset);

/// Waits until the file is on disk. Returns 0 or an errno.
int sync_file(int fd);

}  // namespace gcr::store

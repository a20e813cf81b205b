// One open journal file: its two locks, its content and durable writes. Shared by Journal and the
// readers; internal to this folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "migrate-agent/commit/journal/format.h"
#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::journal {

/// Suffix of a file that is still being created.
inline constexpr const char* kUnfinishedSuffix = ".new";

/// Locks the content of a file while it exists: against readers (F_WRLCK) or against the writer
/// (F_RDLCK).
class ContentLock {
 public:
  /// Waits for the lock. `fd` must outlive the lock.
  static Result<ContentLock> take(int fd, short type);
  ContentLock(ContentLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ContentLock& operator=(ContentLock&&) = delete;
  ~ContentLock();

 private:
  explicit ContentLock(int fd) : fd_(fd) {}
  int fd_;
};

/// Opens a regular file without following a link; close-on-exec.
Result<UniqueFd> open_file(const std::filesystem::path& path, int flags);

/// Makes the caller the owner of the journal; see Lock.
Status own(int fd, Lock how);

/// Returns whether the journal has an owner now, which may be the caller through another
/// descriptor.
Result<bool> owned(int fd);

/// Returns whether the file has been unlinked.
bool unlinked(int fd);

/// Reads and parses the file as the kernel has it in memory, and checks its name. The last record
/// may not be on disk.
Result<Contents> load_cached(int fd, const std::filesystem::path& path);

/// Syncs the file to disk, then reads and parses it like load_cached().
Result<Contents> load(int fd, const std::filesystem::path& path);

/// Returns the content, at most one byte more than a journal has.
Result<std::vector<std::byte>> read_all(int fd);

/// Reads and parses the file, then writes its last record and the free slot after it to disk once
/// more: an earlier append that failed may have left a record in memory only. The caller holds the
/// content lock (F_WRLCK). If the file is damaged, returns the damage and writes nothing.
Result<Contents> load_durable(int fd, const std::filesystem::path& path);

/// Writes all bytes, then calls fdatasync(). On success and on failure, `written_bytes` is the
/// number of bytes that may have changed in the file.
Status write_through(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                     std::size_t& written_bytes);

Status sync_directory(const std::filesystem::path& directory);

}  // namespace gcr::journal

// One open journal file: its two locks, its bytes and how they are written to the disk. Shared by
// Journal and the readers; internal to this folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/commit/journal/format.h"
#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::journal {

/// Suffix of a file that is not a journal yet.
inline constexpr const char* kUnfinishedSuffix = ".new";

/// While it exists, keeps readers (F_WRLCK) or the writer (F_RDLCK) from the content of a file.
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

/// Opens a regular file, following no link; close-on-exec.
Result<UniqueFd> open_file(const std::filesystem::path& path, int flags);

/// Becomes the owner; see Lock.
Status own(int fd, Lock how);

/// Whether it has an owner now, which may be the caller through another descriptor.
Result<bool> owned(int fd);

/// Whether the file has been unlinked.
bool unlinked(int fd);

/// Reads and checks all of the file as it is in memory, its name as well.
Result<Contents> look(int fd, const std::filesystem::path& path);

/// The same, once what was written is on the disk.
Result<Contents> load(int fd, const std::filesystem::path& path);

/// The content, at most one byte more than a journal has.
Result<std::vector<std::byte>> read_all(int fd);

/// Reads and checks all of it, and writes the last record and the free slot after it to the disk
/// once more: what an append that failed has left in memory is on the disk, or it is not believed.
/// The content must be locked (F_WRLCK). Damage is returned, and then nothing is written.
Result<Contents> load_durable(int fd, const std::filesystem::path& path);

/// All bytes, then fdatasync(). `written_bytes` may have changed in the file, whatever is returned.
Status write_through(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                     std::size_t& written_bytes);

Status sync_directory(const std::filesystem::path& directory);

}  // namespace gcr::journal

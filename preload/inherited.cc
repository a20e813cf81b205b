#include "preload/inherited.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

/// The length to which lines are cut: enough for the numbers before a path and for every prefix.
constexpr std::size_t kLineBytes = 256;

/// Calls `visit` with each line of a file, cut after kLineBytes - 1 characters.
template <class Visitor>
void for_each_line(int file, Visitor visit) {
  char block[4096];
  char line[kLineBytes];
  std::size_t length = 0;
  for (ssize_t got = 0; (got = ::read(file, block, sizeof(block))) > 0;) {
    for (ssize_t i = 0; i < got; ++i) {
      if (block[i] != '\n') {
        if (length < kLineBytes - 1) line[length++] = block[i];
        continue;
      }
      line[length] = '\0';
      visit(line);
      length = 0;
    }
  }
}

struct MapsEntry {
  std::uintptr_t start;
  std::uintptr_t end;
  const char* path;  ///< "" if there is none
};

/// Parses "start-end permissions offset device inode   path", with addresses in hexadecimal.
MapsEntry parse(const char* line) {
  MapsEntry entry{};
  char* at = nullptr;
  entry.start = ::strtoul(line, &at, 16);
  if (*at == '-') ++at;
  entry.end = ::strtoul(at, &at, 16);
  for (int field = 0; field < 4; ++field) {
    at += ::strspn(at, " ");
    at += ::strcspn(at, " ");
  }
  entry.path = at + ::strspn(at, " ");
  return entry;
}

/// Unmaps mappings of files that begin with `prefix`; returns their number.
std::size_t unmap_files(std::string_view prefix) {
  const UniqueFd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!maps) return 0;
  std::size_t unmapped = 0;
  for_each_line(maps.get(), [&](const char* line) {
    const MapsEntry entry = parse(line);
    if (!std::string_view(entry.path).starts_with(prefix)) return;
    if (::munmap(reinterpret_cast<void*>(entry.start), entry.end - entry.start) == 0) ++unmapped;
  });
  return unmapped;
}

void close_files(std::string_view prefix) {
  const UniqueFd folder(::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return;
  alignas(dirent64) char entries[2048];
  for (ssize_t got = 0; (got = ::getdents64(folder.get(), entries, sizeof(entries))) > 0;) {
    for (ssize_t at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      char path[kLineBytes];
      const ssize_t length = ::readlinkat(folder.get(), entry->d_name, path, sizeof(path));
      if (length <= 0) continue;  // "." and ".."
      const std::string_view target(path, static_cast<std::size_t>(length));
      if (target.starts_with(prefix)) ::close(::atoi(entry->d_name));
    }
  }
}

}  // namespace

void release_files(std::string_view prefix) {
  const int saved_errno = errno;
  // Unmapping changes the list while it is read, so repeat until a pass unmaps nothing.
  while (unmap_files(prefix) != 0) {
  }
  close_files(prefix);
  errno = saved_errno;
}

}  // namespace gcr::preload

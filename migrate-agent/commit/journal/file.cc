#include "migrate-agent/commit/journal/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "migrate-agent/commit/journal/journal_files.h"

namespace gcr::journal {
namespace {

/// Repeats `call` while it fails with EINTR; returns -1 with errno on any other failure.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

bool set_content_lock(int fd, short type) {
  struct flock range {};  // all of the file
  range.l_type = type;
  range.l_whence = SEEK_SET;
  return uninterrupted([&] { return fcntl(fd, F_OFD_SETLKW, &range); }) == 0;
}

Error lock_failed() { return Error::from_errno(errno, "cannot lock the journal"); }

void check_name(const std::filesystem::path& path, Contents& contents) {
  const auto entry = entry_of(path);
  if (!entry || contents.records.empty()) return;
  const Began& began = contents.records.front().began();
  if (began.role() == entry->role && began.migration_id() == to_bytes(entry->migration)) return;
  contents.damage =
      Error(Code::kDataLoss, fmt::format("at byte {}: Began and the file's name differ in "
                                         "migration or role",
                                         kSlotBytes));
}

std::string of(const std::filesystem::path& path) {
  return fmt::format("journal {}", path.native());
}

struct Loaded {
  std::vector<std::byte> bytes;
  Contents contents;
};

Result<Loaded> load_bytes(int fd, const std::filesystem::path& path) {
  auto bytes = read_all(fd);
  if (!bytes) return bytes.error().while_doing(of(path));
  Loaded loaded{std::move(*bytes), {}};
  loaded.contents = parse(loaded.bytes);
  check_name(path, loaded.contents);
  auto& damage = loaded.contents.damage;
  if (damage) damage = damage->while_doing(of(path));
  return loaded;
}

}  // namespace

Result<ContentLock> ContentLock::take(int fd, short type) {
  if (!set_content_lock(fd, type)) return lock_failed();
  return ContentLock(fd);
}

ContentLock::~ContentLock() {
  if (fd_ >= 0) set_content_lock(fd_, F_UNLCK);
}

Result<UniqueFd> open_file(const std::filesystem::path& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return Error::from_errno(errno, fmt::format("cannot open {}", path.native()));
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return Error(Code::kInvalidArgument, fmt::format("{} is not a file", path.native()));
  }
  return file;
}

Status own(int fd, Lock how) {
  while (flock(fd, how == Lock::kTry ? LOCK_EX | LOCK_NB : LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return lock_failed();
    GCR_ASSIGN(const bool taken, owned(fd));
    if (taken) return Error(Code::kUnavailable, "the journal is owned by a live process");
    sched_yield();  // another process holds the lock only to check for an owner
  }
  return {};
}

Result<bool> owned(int fd) {
  // A shared lock, so that two concurrent checks do not mistake each other for the owner.
  if (uninterrupted([&] { return flock(fd, LOCK_SH | LOCK_NB); }) == 0) {
    flock(fd, LOCK_UN);
    return false;
  }
  if (errno == EWOULDBLOCK) return true;
  return lock_failed();
}

bool unlinked(int fd) {
  struct stat facts {};
  return fstat(fd, &facts) == 0 && facts.st_nlink == 0;
}

Result<std::vector<std::byte>> read_all(int fd) {
  std::vector<std::byte> bytes(kFileBytes + 1);  // one more, to detect a file that is too long
  std::size_t count = 0;
  while (count < bytes.size()) {
    const ssize_t got = uninterrupted([&] {
      return pread(fd, bytes.data() + count, bytes.size() - count, static_cast<off_t>(count));
    });
    if (got < 0) return Error::from_errno(errno, "cannot read the journal");
    if (got == 0) break;
    count += static_cast<std::size_t>(got);
  }
  bytes.resize(count);
  return bytes;
}

Result<Contents> load_cached(int fd, const std::filesystem::path& path) {
  GCR_ASSIGN(Loaded loaded, load_bytes(fd, path));
  return std::move(loaded.contents);
}

Result<Contents> load_durable(int fd, const std::filesystem::path& path) {
  GCR_ASSIGN(Loaded loaded, load_bytes(fd, path));
  if (loaded.contents.damage) return std::move(loaded.contents);
  const std::size_t begin = loaded.contents.records.size() * kSlotBytes;
  const auto tail =
      std::span(loaded.bytes).subspan(begin).first(std::min(2 * kSlotBytes, kFileBytes - begin));
  std::size_t written_bytes = 0;
  const Status written = write_through(fd, tail, begin, written_bytes);
  if (!written) return written.error().while_doing(of(path));
  return std::move(loaded.contents);
}

Result<Contents> load(int fd, const std::filesystem::path& path) {
  if (uninterrupted([&] { return fdatasync(fd); }) != 0) {
    return Error::from_errno(errno, of(path) + ": cannot sync it to disk");
  }
  return load_cached(fd, path);
}

Status write_through(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                     std::size_t& written_bytes) {
  written_bytes = 0;
  while (written_bytes < bytes.size()) {
    const auto rest = bytes.subspan(written_bytes);
    const ssize_t count = uninterrupted([&] {
      return pwrite(fd, rest.data(), rest.size(), static_cast<off_t>(offset + written_bytes));
    });
    if (count < 0) return Error::from_errno(errno, "cannot write to the journal");
    written_bytes += static_cast<std::size_t>(count);
  }
  if (uninterrupted([&] { return fdatasync(fd); }) != 0) {
    return Error::from_errno(errno, "cannot sync the journal to disk");
  }
  return {};
}

Status sync_directory(const std::filesystem::path& directory) {
  const UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened || uninterrupted([&] { return fsync(opened.get()); }) != 0) {
    return Error::from_errno(errno, fmt::format("cannot sync {} to disk", directory.native()));
  }
  return {};
}

}  // namespace gcr::journal

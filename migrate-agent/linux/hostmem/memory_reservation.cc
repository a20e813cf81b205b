#include "migrate-agent/linux/hostmem/memory_reservation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/file_lock.h"
#include "src/base/uuid.h"

namespace gcr::hostmem {
namespace {

namespace fs = std::filesystem;

/// Opens the directory and locks it until the descriptor is closed.
Result<UniqueFd> lock_directory(const fs::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return Error::from_errno(errno, fmt::format("opening {}", directory.string()));
  GCR_TRY(lock_file(fd.get(), directory.string()));
  return fd;
}

std::uint64_t sum(std::uint64_t one, std::uint64_t other) {
  return one + std::min(other, ~std::uint64_t{0} - one);
}

Memory sum(const Memory& one, const Memory& other) {
  return {sum(one.ordinary_bytes, other.ordinary_bytes), sum(one.huge_bytes, other.huge_bytes)};
}

/// Returns whether the owner of a reservation is dead. An owner that was killed may hold its lock
/// until its GPU memory is freed, and a child of it longer.
bool is_dead(const fs::path& reservation) {
  pid_t owner = 0;
  const std::string name = reservation.filename();
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), owner);
  if (parsed.ec != std::errc() || owner <= 0) return false;
  const procfs::Stat stat = procfs::read_stat(owner).value_or(procfs::Stat());
  return procfs::has_ended(stat) || procfs::is_exiting(stat);
}

/// Adds up the reservations of living owners and removes the others. The caller holds the lock of
/// the directory.
Result<Memory> add_up(const fs::path& directory) {
  Memory all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const UniqueFd file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) continue;  // its owner has just released it
    if (is_dead(entry.path()) || lock_file(file.get(), entry.path().string(), {})) {
      ::unlink(entry.path().c_str());
      continue;
    }
    Memory one;
    std::ifstream(entry.path()) >> one.ordinary_bytes >> one.huge_bytes;
    all = sum(all, one);
  }
  if (error) return Error::from_errno(error.value(), fmt::format("listing {}", directory.string()));
  return all;
}

std::uint64_t total(const Memory& memory) { return sum(memory.ordinary_bytes, memory.huge_bytes); }

std::uint64_t less(std::uint64_t from, std::uint64_t by) { return from - std::min(from, by); }

}  // namespace

Memory left_of(const Memory& free, const Memory& needed) {
  const std::uint64_t beyond = less(needed.huge_bytes, free.huge_bytes);
  return {less(free.ordinary_bytes, sum(needed.ordinary_bytes, beyond)),
          less(free.huge_bytes, needed.huge_bytes)};
}

bool is_enough(const Memory& free, const Memory& needed) {
  return left_of(free, needed).ordinary_bytes >= kSpareMemoryBytes;
}

Result<Memory> free_memory() {
  GCR_ASSIGN(const HugepageCounters pages, hugepage_counters());
  GCR_ASSIGN(const std::uint64_t available, available_memory_bytes());
  return Memory{available, less(pages.free, pages.reserved) * kChunkBytes};
}

Result<std::unique_ptr<MemoryReservation>> MemoryReservation::create(fs::path directory,
                                                                     ReadFreeMemory read_free) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) fs::permissions(directory, fs::perms::owner_all, error);
  if (error) {
    return Error::from_errno(error.value(), fmt::format("creating {}", directory.string()));
  }
  std::unique_ptr<MemoryReservation> made(
      new MemoryReservation(std::move(directory), std::move(read_free)));
  GCR_ASSIGN(const UniqueFd lock, lock_directory(made->directory_));
  made->path_ = made->directory_ / fmt::format("{}-{}", ::getpid(), Uuid::random().to_string());
  made->file_.reset(::open(made->path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made->file_) {
    return Error::from_errno(errno, fmt::format("creating {}", made->path_.string()));
  }
  GCR_TRY(lock_file(made->file_.get(), made->path_.string()));
  return made;
}

MemoryReservation::~MemoryReservation() {
  if (file_) ::unlink(path_.c_str());
}

Status MemoryReservation::write(const Memory& memory) {
  // The text has a constant length, so one write replaces the previous one.
  const std::string text = fmt::format("{:20} {:20}\n", memory.ordinary_bytes, memory.huge_bytes);
  if (::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return Error::from_errno(errno, fmt::format("writing {}", path_.string()));
  }
  reserved_ = memory;
  return {};
}

Status MemoryReservation::add(const Memory& more) {
  const std::lock_guard guard(mutex_);
  GCR_ASSIGN(const UniqueFd lock, lock_directory(directory_));
  GCR_ASSIGN(const Memory all, add_up(directory_));
  GCR_ASSIGN(const Memory free, read_free_());
  if (!is_enough(free, sum(all, more))) {
    return Error(Code::kResourceExhausted,
                 fmt::format("{} of memory are needed; {} and {} in hugepages are free; migrations "
                             "have reserved {}, and {} are kept for the host",
                             format_bytes(total(more)), format_bytes(free.ordinary_bytes),
                             format_bytes(free.huge_bytes), format_bytes(total(all)),
                             format_bytes(kSpareMemoryBytes)));
  }
  return write(sum(reserved_, more));
}

Status MemoryReservation::taken(const Memory& memory) {
  const std::lock_guard guard(mutex_);
  GCR_ASSIGN(const UniqueFd lock, lock_directory(directory_));
  return write({less(reserved_.ordinary_bytes, memory.ordinary_bytes),
                less(reserved_.huge_bytes, memory.huge_bytes)});
}

Result<Memory> reserved_memory(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) return Memory();
  GCR_ASSIGN(const UniqueFd lock, lock_directory(directory));
  return add_up(directory);
}

}  // namespace gcr::hostmem

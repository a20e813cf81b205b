#include "tests/support/test_disk.h"

#include <algorithm>
#include <cerrno>

#include "tests/support/test_disk_file.h"

namespace gcr::test {
namespace {

constexpr std::size_t kPageBytes = 4096;

bool chance(std::mt19937_64& random) { return (random() & 1) != 0; }

/// Pages and a length of either.
std::vector<char> mixture(const std::vector<char>& old, const std::vector<char>& fresh,
                          std::mt19937_64& random) {
  std::vector<char> mixed(std::max(old.size(), fresh.size()));
  for (std::size_t at = 0; at < mixed.size(); at += kPageBytes) {
    const std::vector<char>& from = chance(random) ? fresh : old;
    const std::size_t end = std::min(from.size(), at + kPageBytes);
    if (at < end) std::copy(&from[at], &from[at] + (end - at), &mixed[at]);
  }
  const std::size_t shorter = std::min(old.size(), fresh.size());
  switch (random() % 3) {
    case 0:
      mixed.resize(old.size());
      break;
    case 1:
      mixed.resize(fresh.size());
      break;
    default:
      mixed.resize(shorter + random() % (mixed.size() - shorter + 1));
  }
  return mixed;
}

}  // namespace

Disk::Disk(uid_t uid, gid_t gid) : root_(std::make_shared<File>()) {
  root_->mode = S_IFDIR | 0700;
  root_->uid = uid;
  root_->gid = gid;
}

Disk::~Disk() = default;

void Disk::cut_power_at(unsigned number) {
  const std::lock_guard lock(mutex_);
  cut_after_ = number;
}

bool Disk::is_off() const {
  const std::lock_guard lock(mutex_);
  return is_off_;
}

void Disk::fail_sync_at(unsigned number, int errno_value) {
  const std::lock_guard lock(mutex_);
  failing_sync_ = {number, errno_value, false};
}

void Disk::fail_syncs(int errno_value) {
  const std::lock_guard lock(mutex_);
  failing_sync_ = {0, errno_value, true};
}

void Disk::leave(std::uint64_t bytes, int errno_value) {
  const std::lock_guard lock(mutex_);
  full_error_ = errno_value;
  size_bytes_ = root_->used_bytes() + bytes;
}

/// A file without a name uses none.
std::uint64_t Disk::room() const {
  const std::uint64_t used = root_->used_bytes();
  return used < size_bytes_ ? size_bytes_ - used : 0;
}

/// False once the power is off.
bool Disk::begin_change() {
  if (cut_after_ && (*cut_after_)-- == 0) is_off_ = true;
  return !is_off_;
}

Disk::FilePtr Disk::find(const std::string& path) const {
  FilePtr at = root_;
  for (const auto& part : std::filesystem::path(path).relative_path()) {
    const auto found = at->entries.find(part);
    if (found == at->entries.end()) return nullptr;
    at = found->second;
  }
  return at;
}

void Disk::restart(Loss loss, std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  is_off_ = false;
  cut_after_.reset();
  failing_sync_.reset();
  if (loss == Loss::kNothing) return;
  ++restarts_;
  std::mt19937_64 random(seed);
  lose(*root_, loss, random);
}

void Disk::lose(File& file, Loss loss, std::mt19937_64& random) {
  if (!S_ISDIR(file.mode)) {
    if (loss == Loss::kNames) file.durable = file.bytes;
    if (loss == Loss::kSome) file.durable = mixture(file.durable, file.bytes, random);
    file.bytes = file.durable;
    return;
  }
  for (const auto& change : file.changes) {
    if (loss == Loss::kBytes || (loss == Loss::kSome && chance(random))) file.apply(change);
  }
  file.changes.clear();
  file.entries = file.durable_entries;
  for (const auto& [name, entry] : file.entries) lose(*entry, loss, random);
}

void Disk::flip_bit(const std::string& path, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  find(path)->flipped = offset;
}

void Disk::fail_reads(const std::string& path, int errno_value) {
  const std::lock_guard lock(mutex_);
  find(path)->read_error = errno_value;
}

void Disk::end_reads_at(const std::string& path, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  find(path)->reads_end = offset;
}

}  // namespace gcr::test

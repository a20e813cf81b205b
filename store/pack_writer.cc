// Contents are written in parallel at places that are allocated under the mutex. finish() punches
// holes into free places, syncs the contents, appends index and end, syncs again, and names the
// file.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>

#include <cerrno>

#include "store/pack.h"

namespace gcr::store {
namespace {

/// Writeback is started after this many bytes, so that finish() waits less.
constexpr std::uint64_t kWritebackBytes = 64 * kMiB;

}  // namespace

Result<std::unique_ptr<PackWriter>> PackWriter::create(const Directory& directory,
                                                       const std::string& file_name) {
  GCR_ASSIGN(UniqueFd file, directory.make_unnamed("packs"));
  const bool is_unnamed = static_cast<bool>(file);
  if (!is_unnamed) {
    GCR_ASSIGN(file, directory.open_file(file_name, O_RDWR | O_CREAT | O_EXCL));
  }
  std::unique_ptr<PackWriter> pack(
      new PackWriter(directory, file_name, std::move(file), is_unnamed));
  const int error = write_all(pack->file_.get(), pack_header(), 0);
  if (error == 0) return pack;
  if (!is_unnamed) (void)directory.remove(file_name);
  return pack->failed(error);
}

Error PackWriter::failed(int error) const {
  return directory_.failed(error, fmt::format("cannot write {}", file_name_));
}

void PackWriter::begin_writeback(std::uint64_t written) {
  {
    const std::lock_guard lock(mutex_);
    unannounced_ += written;
    if (unannounced_ < kWritebackBytes) return;
    unannounced_ = 0;
  }
  ::sync_file_range(file_.get(), 0, 0,
                    SYNC_FILE_RANGE_WRITE);  // if it fails, finish() waits longer
}

Result<Location> PackWriter::add(const ContentName& name, std::span<const std::byte> stored,
                                 std::uint32_t raw_bytes, Codec codec) {
  Location location{.offset = 0,
                    .stored_bytes = static_cast<std::uint32_t>(stored.size()),
                    .raw_bytes = raw_bytes,
                    .codec = codec};
  {
    const std::lock_guard lock(mutex_);
    if (index_.size() >= kMaxPackEntries) {
      return Error(Code::kResourceExhausted, fmt::format("{} has {} contents, the most of a pack",
                                                         file_name_, kMaxPackEntries));
    }
    location.offset = places_.allocate(round_up(stored.size(), kPlaceBytes));
    index_.emplace(name, location);
    live_bytes_ += stored.size();
  }
  const int error = write_all(file_.get(), stored, location.offset);
  if (error != 0) {
    const Error failure = failed(error);
    remove(name);
    return failure;
  }
  begin_writeback(stored.size());
  return location;
}

void PackWriter::remove(const ContentName& name) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(name);
  if (found == index_.end()) return;
  const Location& location = found->second;
  places_.release(location.offset, round_up(location.stored_bytes, kPlaceBytes));
  live_bytes_ -= location.stored_bytes;
  index_.erase(found);
}

Status PackWriter::finish() {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, bytes] : places_.holes()) {
    // Only saves space, so errors are ignored: not every file system supports it.
    ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
  }
  const std::uint64_t end = places_.end();
  if (::ftruncate(file_.get(), static_cast<off_t>(end)) != 0) return failed(errno);
  // Contents first: a pack with an end has all of them, even after a power failure.
  int error = sync_file(file_.get());
  if (error == 0) error = write_all(file_.get(), encode_index(index_, end), end);
  if (error == 0) error = sync_file(file_.get());
  if (error != 0) return failed(error);
  return is_unnamed_ ? directory_.give_name(file_, file_name_) : Status();
}

std::uint64_t PackWriter::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

}  // namespace gcr::store

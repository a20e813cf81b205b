#include "migrate-agent/migration/target/store/image_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <thread>
#include <vector>

#include "src/base/side_by_side.h"
#include "src/base/zeros.h"

namespace gcr::migration {
namespace {

constexpr std::size_t kPageBytes = 4096;
/// The unit in which memory is stored: if a byte of a part changes, the whole part is stored again.
/// Smaller parts make smaller increments and a longer manifest.
constexpr std::size_t kPartBytes = 64 * kKiB;
constexpr std::size_t kMostThreads = 16;
/// The size of one read of a file, and how many reads may wait to be stored.
constexpr std::size_t kWindowBytes = kMiB;
constexpr unsigned kMostUnderWay = 64;
constexpr std::uint64_t kAddressEnd = std::uint64_t{1} << 47;

using Part = std::array<std::byte, kPartBytes>;

/// The parts that `ranges` touch, each with the index of the first range that ends after its start.
std::vector<std::pair<std::uint64_t, std::size_t>> parts_of(std::span<const AddressRange> ranges) {
  std::vector<std::pair<std::uint64_t, std::size_t>> parts;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    std::uint64_t part = ranges[i].start / kPartBytes * kPartBytes;
    if (!parts.empty()) part = std::max(part, parts.back().first + kPartBytes);
    for (; part < ranges[i].end; part += kPartBytes) parts.emplace_back(part, i);
  }
  return parts;
}

}  // namespace

CheckpointSink::CheckpointSink(store::Writer& writer)
    : writer_(writer),
      workers_(std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads)) {}

CheckpointSink::~CheckpointSink() { workers_.join(); }

CheckpointSink::Image& CheckpointSink::image(Images& images, const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto& image = images[name];
  if (image == nullptr) image = std::make_unique<Image>(writer_);
  return *image;
}

/// Stores `bytes` at `offset`, one content for each run of pages; pages of zeros become holes.
Status CheckpointSink::store(Image& image, std::uint64_t offset, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto is_hole = [&](std::size_t page) {
      return is_zero(bytes.subspan(page, std::min(kPageBytes, bytes.size() - page)));
    };
    const bool hole = is_hole(at);
    std::size_t end = at + kPageBytes;
    while (end < bytes.size() && is_hole(end) == hole) end += kPageBytes;
    end = std::min(end, bytes.size());
    std::optional<store::ContentRef> content;
    if (!hole) {
      GCR_ASSIGN(content, writer_.add(bytes.subspan(at, end - at)));
      stored_bytes_ += end - at;
    }
    const std::lock_guard lock(image.mutex);
    if (content) {
      image.extents.put(offset + at, static_cast<std::uint32_t>(end - at), *content);
    } else {
      image.extents.clear(offset + at, offset + end);
    }
    at = end;
  }
  return {};
}

/// Stores a window on a worker thread, in parts. Waits while kMostUnderWay are not stored yet.
void CheckpointSink::store_later(Image& file, std::uint64_t offset, RawBytes window,
                                 std::size_t length) {
  {
    std::unique_lock lock(mutex_);
    stored_.wait(lock, [this] { return under_way_ < kMostUnderWay; });
    ++under_way_;
  }
  asio::post(workers_, [this, &file, offset, length, window = std::move(window)] {
    const auto bytes = std::span(window).first(length);
    Status done = broken_.status();
    for (std::size_t at = 0; done && at < bytes.size(); at += kPartBytes) {
      done = store(file, offset + at, bytes.subspan(at, std::min(kPartBytes, length - at)));
    }
    if (!done) (void)broken_.set(done.error());
    const std::lock_guard lock(mutex_);
    --under_way_;
    stored_.notify_all();
  });
}

Status CheckpointSink::take(const std::string& name, UniqueFd content) {
  Image& file = image(files_, name);
  for (bool ended = false; !ended;) {
    GCR_TRY(broken_.status());
    RawBytes window(kWindowBytes);  // on the heap, because most images are small
    GCR_ASSIGN(const std::size_t length, images::read_window(content.get(), window, name));
    ended = length < kWindowBytes;
    store_later(file, file.size_bytes, std::move(window), length);
    file.size_bytes += length;
    raw_bytes_ += length;
  }
  return {};
}

/// Stores the pages of `ranges` in the part of a memory that begins at `part`.
Status CheckpointSink::store_part(Image& image, std::uint64_t part,
                                  std::span<const AddressRange> ranges, const ReadMemory& read,
                                  bool last) {
  GCR_TRY(broken_.status());
  thread_local Part bytes;
  for (const AddressRange& range : ranges) {
    if (range.start >= part + kPartBytes) break;
    const std::uint64_t from = std::max(range.start, part);
    const std::uint64_t to = std::min(range.end, part + kPartBytes);
    const auto pages = std::span(bytes).first(to - from);
    GCR_TRY(read(from, pages));
    GCR_TRY(store(image, from, pages));
    if (last) raw_bytes_ += pages.size();
    if (last) memory_bytes_ += pages.size();
  }
  return {};
}

Status CheckpointSink::take_memory(const std::string& name, std::span<const AddressRange> ranges,
                                   const ReadMemory& read, bool last) {
  if (!ranges.empty() && ranges.back().end > kAddressEnd) {
    return Error(Code::kUnsupported,
                 fmt::format("{} has memory at {:#x}, beyond 2^47", name, ranges.back().end));
  }
  Image& memory = image(memories_, name);
  const auto parts = parts_of(ranges);
  // The last call runs while the program is stopped: many readers would slow CRIU down.
  const std::size_t few =
      std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, kMostThreads);
  return share_out(parts.size(), last ? few : kMostThreads, [&](std::size_t i) {
    return store_part(memory, parts[i].first, ranges.subspan(parts[i].second), read, last);
  });
}

Result<images::SentImages> CheckpointSink::finish() {
  {
    std::unique_lock lock(mutex_);
    stored_.wait(lock, [this] { return under_way_ == 0; });
  }
  GCR_TRY(broken_.status());
  return images::SentImages{.files = {},
                            .raw_bytes = raw_bytes_,
                            .memory_bytes = memory_bytes_,
                            .zero_bytes = 0,  // not counted
                            .sent_bytes = stored_bytes_,
                            .codec = writer_.options().codec};
}

void CheckpointSink::describe(proto::Manifest& manifest) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, file] : files_) {
    proto::StoredImage& stored = *manifest.add_images();
    stored.set_name(name);
    stored.set_size_bytes(file->size_bytes);
    file->extents.describe(stored);
  }
  for (const auto& [name, memory] : memories_) {
    proto::StoredImage& stored = *manifest.add_memories();
    stored.set_name(name);
    memory->extents.describe(stored);
  }
}

}  // namespace gcr::migration

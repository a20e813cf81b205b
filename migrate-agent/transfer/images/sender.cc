// Each image is cut into windows of 1 MiB. A pool of threads takes one window at a time: it finds
// the pages that are not zeros, drops those that the destination has already, digests, compresses,
// and writes the rest as one block into a free slot of the ring. A fixed number of buffers bounds
// how much is read ahead of that.
//
// Memory is sent in rounds. For each window it is remembered which pages were sent with data, and
// the digest of each. A page is news if its digest differs from the one that was sent last, or if
// it became zeros; the number of the round, in the block, tells the destination which block is
// newer.
#include "migrate-agent/transfer/images/sender.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "migrate-agent/gpu/digest/digest.h"
#include "migrate-agent/transfer/images/block.h"
#include "migrate-agent/transfer/images/slots.h"
#include "src/base/raw_bytes.h"
#include "src/base/side_by_side.h"
#include "src/base/units.h"

namespace gcr::images {

Result<std::size_t> read_window(int fd, std::span<std::byte> window, const std::string& name) {
  std::size_t filled = 0;
  while (filled < window.size()) {
    const ssize_t got = ::read(fd, window.data() + filled, window.size() - filled);
    if (got == 0) break;
    if (got < 0 && errno != EINTR) {
      return Error::from_errno(errno, fmt::format("cannot read the image {}", name));
    }
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return filled;
}

namespace {

/// Reads the pages in `ranges` of the window at `offset` of a memory, and gives them. The first
/// range must end behind `offset`.
Result<PresentPages> read_window(const ReadMemory& read, std::span<const AddressRange> ranges,
                                 std::uint64_t offset, std::span<std::byte> window) {
  PresentPages pages;
  for (const AddressRange& range : ranges) {
    if (range.start >= offset + window.size()) break;
    const std::uint64_t from = std::max(range.start, offset) - offset;
    const std::uint64_t to = std::min(range.end - offset, window.size());
    GCR_TRY(read(offset + from, window.subspan(from, to - from)));
    for (std::size_t page = from / kPageBytes; page < to / kPageBytes; ++page) pages.set(page);
  }
  return pages;
}

/// Into so many files a memory is divided: the kernel writes a file for one thread at a time.
constexpr std::size_t kMemoryFiles = 8;

/// What the destination has of a window of memory.
struct MemoryWindow {
  PresentPages with_data;
  std::array<digest::Digest, kPagesPerWindow> digests;  ///< of pages with data
};

/// A memory that is sent in rounds.
struct Memory {
  std::uint16_t number = 0;
  std::array<std::optional<std::size_t>, kMemoryFiles> files;  ///< where they are among all files
  std::uint32_t round = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<MemoryWindow>> windows;  ///< by offset
};

/// A round of a memory: lives until all of its windows are read.
struct MemoryRound {
  const ReadMemory& read;
  const bool last;
  std::size_t unread_windows = 0;
};

/// Room for the header, then for a window: a block that is sent as it is needs no copy.
using Buffer = RawBytes;

std::span<std::byte> window_of(Buffer& buffer) {
  return std::span(buffer).subspan(kBlockHeaderBytes);
}

}  // namespace

struct ImageSender::Impl {
  Impl(transport::Channel& channel, const SenderOptions& options, unsigned threads)
      : channel(channel),
        region(options.region),
        slots(channel, static_cast<std::uint32_t>(
                           std::min<std::uint64_t>(options.region_bytes / kSlotBytes, 1U << 16))),
        digester(options.secret),
        page_key(digest::DigestKey::expand(options.secret)),
        chooser(options.compression, options.link_bytes_per_s, threads),
        threads(threads),
        workers(threads) {
    // One per worker in use, and as many again for the readers.
    for (unsigned i = 0; i < 2 * threads + 2; ++i) free_buffers.emplace_back(kSlotBytes);
  }
  ~Impl() { workers.join(); }

  Buffer acquire_buffer();
  void release_buffer(Buffer buffer);
  void fail(const Error& error);
  Status health();
  Result<ImageFile> new_file(const std::string& name);
  Result<std::uint32_t> file_of_memory(const std::string& name, Memory& memory,
                                       std::uint64_t offset);
  PresentPages news(std::span<const std::byte> window, const PresentPages& pages,
                    const PresentPages& with_data, MemoryWindow& sent) const;
  void process(Buffer buffer, BlockHeader header);
  void process_window(Buffer buffer, BlockHeader header);
  void read_and_process(Buffer buffer, BlockHeader header, std::span<const AddressRange> ranges,
                        MemoryRound& round, MemoryWindow* sent);
  Status add_digest(const BlockHeader& header, std::span<const std::byte> pages);
  Status send(Buffer& buffer, BlockHeader& header);
  Status write_slot(const BlockHeader& header, std::span<std::byte> block);

  transport::Channel& channel;
  const transport::RegionId region;
  Slots slots;
  const WindowDigester digester;
  const digest::DigestKey page_key;
  store::CodecChooser chooser;

  std::mutex mutex;
  std::condition_variable buffer_released;  // and a window of memory was read
  std::vector<Buffer> free_buffers;
  unsigned buffers_out = 0;
  std::uint32_t next_id = 0;
  std::vector<ImageFile> files;
  std::map<std::string, Memory> memories;
  std::unordered_map<std::uint32_t, ImageDigest> digests;  // by file
  std::optional<Error> failure;
  std::atomic<std::uint64_t> raw_bytes = 0;
  std::atomic<std::uint64_t> memory_bytes = 0;
  std::atomic<std::uint64_t> zero_bytes = 0;
  std::atomic<std::uint64_t> sent_bytes = 0;

  const unsigned threads;
  asio::thread_pool workers;
};

Buffer ImageSender::Impl::acquire_buffer() {
  std::unique_lock lock(mutex);
  buffer_released.wait(lock, [this] { return !free_buffers.empty(); });
  Buffer buffer = std::move(free_buffers.back());
  free_buffers.pop_back();
  ++buffers_out;
  return buffer;
}

void ImageSender::Impl::release_buffer(Buffer buffer) {
  const std::lock_guard lock(mutex);
  free_buffers.push_back(std::move(buffer));
  --buffers_out;
  buffer_released.notify_all();
}

void ImageSender::Impl::fail(const Error& error) {
  const std::lock_guard lock(mutex);
  if (!failure) failure = error.while_doing("cannot send the images");
}

Status ImageSender::Impl::health() {
  const std::lock_guard lock(mutex);
  if (failure) return *failure;
  return {};
}

Result<ImageFile> ImageSender::Impl::new_file(const std::string& name) {
  const std::lock_guard lock(mutex);
  ImageFile file{.name = name, .id = next_id++};
  if (file.id >= kMaxFiles) return Error(Code::kUnsupported, "the dump has too many images");
  return file;
}

/// The file for a window of a memory, which gets longer if need be.
Result<std::uint32_t> ImageSender::Impl::file_of_memory(const std::string& name, Memory& memory,
                                                        std::uint64_t offset) {
  const std::size_t part = offset / kWindowBytes % kMemoryFiles;
  auto& place = memory.files[part];
  if (!place) {
    GCR_ASSIGN(ImageFile file, new_file(fmt::format("{}-{}.img", name, part)));
    const std::lock_guard lock(mutex);
    place = files.size();
    files.push_back(std::move(file));
  }
  const std::lock_guard lock(mutex);
  ImageFile& file = files[*place];
  file.size_bytes = std::max(file.size_bytes, offset + kWindowBytes);
  return file.id;
}

/// Those of `pages` of a window that are not what was sent of them, and are from now on.
PresentPages ImageSender::Impl::news(std::span<const std::byte> window, const PresentPages& pages,
                                     const PresentPages& with_data, MemoryWindow& sent) const {
  PresentPages changed = pages & sent.with_data & ~with_data;
  for (std::size_t page = 0; page < kPagesPerWindow; ++page) {
    if (!with_data[page]) continue;
    const auto now = digest::digest_chunk(page_key, window.subspan(page * kPageBytes, kPageBytes));
    if (sent.with_data[page] && sent.digests[page] == now) continue;
    sent.digests[page] = now;
    changed.set(page);
  }
  sent.with_data = (sent.with_data & ~pages) | with_data;
  return changed;
}

/// Sends the pages of the window in `buffer` that the header tells.
void ImageSender::Impl::process(Buffer buffer, BlockHeader header) {
  if (header.present.any()) {
    pack(window_of(buffer).first(header.raw_bytes), header.present);
    if (const Status sent = send(buffer, header); !sent) fail(sent.error());
  }
  release_buffer(std::move(buffer));
}

/// Sends all of a file's window that is not zeros.
void ImageSender::Impl::process_window(Buffer buffer, BlockHeader header) {
  header.present = pages_with_data(window_of(buffer).first(header.raw_bytes));
  raw_bytes += header.raw_bytes;
  zero_bytes += header.raw_bytes - header.payload_bytes();
  process(std::move(buffer), header);
}

/// Counts the round's unread windows down, under `mutex`, when `ranges` and `round` are not used
/// any more. `sent` is of this window, if anything was sent of it or will be sent again.
void ImageSender::Impl::read_and_process(Buffer buffer, BlockHeader header,
                                         std::span<const AddressRange> ranges, MemoryRound& round,
                                         MemoryWindow* sent) {
  const bool last = round.last;
  const auto read_if_healthy = [&]() -> Result<PresentPages> {
    GCR_TRY(health());
    return read_window(round.read, ranges, header.offset, window_of(buffer));
  };
  const auto pages = read_if_healthy();
  if (!pages) fail(pages.error());
  {
    const std::lock_guard lock(mutex);
    --round.unread_windows;
    buffer_released.notify_all();
  }
  if (!pages) return release_buffer(std::move(buffer));
  const PresentPages with_data = pages_with_data(window_of(buffer), *pages);
  header.present = sent != nullptr ? news(window_of(buffer), *pages, with_data, *sent) : with_data;
  if (last) {
    raw_bytes += pages->count() * kPageBytes;
    memory_bytes += pages->count() * kPageBytes;
    zero_bytes += (*pages & ~with_data).count() * kPageBytes;
  }
  process(std::move(buffer), header);
}

Status ImageSender::Impl::add_digest(const BlockHeader& header, std::span<const std::byte> pages) {
  GCR_ASSIGN(const ImageDigest digest, digester.digest(header, pages));
  const std::lock_guard lock(mutex);
  digests[header.file] += digest;
  return {};
}

Status ImageSender::Impl::send(Buffer& buffer, BlockHeader& header) {
  thread_local Buffer compressed(kSlotBytes);
  const auto payload = window_of(buffer).first(header.payload_bytes());
  GCR_TRY(add_digest(header, payload));
  header.codec = chooser.next();
  if (header.codec != store::Codec::kNone) {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t size = store::compress(header.codec, payload, window_of(compressed));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    chooser.observe(header.codec, payload.size(), size != 0 ? size : payload.size(), took.count());
    if (size != 0) {
      header.stored_bytes = static_cast<std::uint32_t>(size);
      return write_slot(header, std::span(compressed).first(kBlockHeaderBytes + size));
    }
    header.codec = store::Codec::kNone;
  }
  header.stored_bytes = static_cast<std::uint32_t>(payload.size());
  return write_slot(header, std::span(buffer).first(kBlockHeaderBytes + payload.size()));
}

Status ImageSender::Impl::write_slot(const BlockHeader& header, std::span<std::byte> block) {
  GCR_TRY(health());
  const BlockHeaderBytes bytes = encode(header);
  std::copy(bytes.begin(), bytes.end(), block.begin());
  GCR_ASSIGN(const std::uint32_t slot, slots.acquire());
  const Status written = channel.write(region, std::uint64_t{slot} * kSlotBytes, block);
  slots.written(slot);
  sent_bytes += block.size();
  return written;
}

ImageSender::ImageSender(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ImageSender::~ImageSender() = default;

Result<std::unique_ptr<ImageSender>> ImageSender::create(transport::Channel& channel,
                                                         const SenderOptions& options) {
  if (options.region_bytes < kSlotBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a region of {} bytes has no room for a block", options.region_bytes));
  }
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned threads = std::max(channel.useful_writers(), std::min(cores, 16U));
  return std::unique_ptr<ImageSender>(
      new ImageSender(std::make_unique<Impl>(channel, options, threads)));
}

Status ImageSender::take(const std::string& name, UniqueFd content) {
  GCR_ASSIGN(ImageFile file, impl_->new_file(name));
  for (;;) {
    GCR_TRY(impl_->health());
    Buffer buffer = impl_->acquire_buffer();
    const auto got = read_window(content.get(), window_of(buffer), name);
    if (!got || *got == 0) {
      impl_->release_buffer(std::move(buffer));
      if (!got) return got.error();
      break;
    }
    const BlockHeader header{
        .file = file.id, .offset = file.size_bytes, .raw_bytes = static_cast<std::uint32_t>(*got)};
    file.size_bytes += *got;
    asio::post(impl_->workers, [impl = impl_.get(), buffer = std::move(buffer), header]() mutable {
      impl->process_window(std::move(buffer), header);
    });
    if (*got < kWindowBytes) break;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->files.push_back(std::move(file));
  return {};
}

Status ImageSender::take_content(const std::string& name, std::uint64_t size_bytes,
                                 const ReadMemory& content) {
  GCR_ASSIGN(ImageFile file, impl_->new_file(name));
  file.size_bytes = size_bytes;
  const std::size_t windows = round_up(size_bytes, kWindowBytes) / kWindowBytes;
  GCR_TRY(share_out(windows, impl_->threads, [&](std::size_t i) -> Status {
    GCR_TRY(impl_->health());
    const std::uint64_t offset = i * kWindowBytes;
    const auto size = std::min<std::uint64_t>(kWindowBytes, size_bytes - offset);
    Buffer buffer = impl_->acquire_buffer();
    const Status read = content(offset, window_of(buffer).first(size));
    if (read) {
      impl_->process_window(
          std::move(buffer),
          {.file = file.id, .offset = offset, .raw_bytes = static_cast<std::uint32_t>(size)});
    } else {
      impl_->release_buffer(std::move(buffer));
    }
    return read;
  }));
  const std::lock_guard lock(impl_->mutex);
  impl_->files.push_back(std::move(file));
  return {};
}

Status ImageSender::take_memory(const std::string& name, std::span<const AddressRange> ranges,
                                const ReadMemory& read, bool last) {
  if (!ranges.empty() && ranges.back().end > kMaxFileBytes) {
    return Error(Code::kUnsupported,
                 fmt::format("{} has memory at {:#x}, beyond 2^47", name, ranges.back().end));
  }
  Memory* memory = nullptr;
  {
    const std::lock_guard lock(impl_->mutex);
    memory = &impl_->memories[name];
    if (impl_->memories.size() >= kMaxMemories) {
      return Error(Code::kUnsupported, "the job has too many memories");
    }
    if (memory->number == 0) memory->number = static_cast<std::uint16_t>(impl_->memories.size());
  }
  MemoryRound round{read, last};
  BlockHeader header{.raw_bytes = kWindowBytes,
                     .memory = memory->number,
                     .shared = name.starts_with(kSharedMemory),
                     .round = memory->round++};
  if (header.round == kMaxRounds) impl_->fail(Error(Code::kUnsupported, "too many rounds"));
  for (std::uint64_t end = 0; !ranges.empty() && impl_->health();
       end = header.offset + kWindowBytes) {
    while (!ranges.empty() && ranges.front().end <= end) ranges = ranges.subspan(1);
    if (ranges.empty()) break;
    header.offset = std::max(end, ranges.front().start / kWindowBytes * kWindowBytes);
    const auto file = impl_->file_of_memory(name, *memory, header.offset);
    if (!file) {
      impl_->fail(file.error());
      break;
    }
    header.file = *file;
    auto& sent = memory->windows[header.offset];
    if (sent == nullptr && !last) sent = std::make_unique<MemoryWindow>();
    Buffer buffer = impl_->acquire_buffer();
    {
      const std::lock_guard lock(impl_->mutex);
      ++round.unread_windows;
    }
    asio::post(impl_->workers, [impl = impl_.get(), buffer = std::move(buffer), header, ranges,
                                &round, sent = sent.get()]() mutable {
      impl->read_and_process(std::move(buffer), header, ranges, round, sent);
    });
  }
  std::unique_lock lock(impl_->mutex);
  impl_->buffer_released.wait(lock, [&] { return round.unread_windows == 0; });
  if (impl_->failure) return *impl_->failure;
  return {};
}

Result<SentImages> ImageSender::finish() {
  {
    std::unique_lock lock(impl_->mutex);
    impl_->buffer_released.wait(lock, [this] { return impl_->buffers_out == 0; });
  }
  GCR_TRY(impl_->health());
  GCR_TRY(impl_->channel.flush());
  const std::lock_guard lock(impl_->mutex);
  for (ImageFile& file : impl_->files) file.digest = impl_->digests[file.id];
  return SentImages{.files = impl_->files,
                    .raw_bytes = impl_->raw_bytes,
                    .memory_bytes = impl_->memory_bytes,
                    .zero_bytes = impl_->zero_bytes,
                    .sent_bytes = impl_->sent_bytes,
                    .codec = impl_->chooser.chosen()};
}

}  // namespace gcr::images

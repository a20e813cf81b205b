#include "migrate-agent/images/sender.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "migrate-agent/images/block.h"
#include "migrate-agent/images/slots.h"

namespace gcr::images {
namespace {

/// Fills `window` from `fd` up to the end of file; gives the number of bytes.
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

/// Fills the window at `offset` of a memory: from `read` where `ranges` cover it, else with zeros.
/// The first range must end behind `offset`. Gives the number of bytes that are covered.
Result<std::uint64_t> read_window(const ReadMemory& read, std::span<const AddressRange> ranges,
                                  std::uint64_t offset, std::span<std::byte> window) {
  std::uint64_t covered = 0;
  std::uint64_t filled = 0;
  for (const AddressRange& range : ranges) {
    if (range.start >= offset + window.size()) break;
    const std::uint64_t from = std::max(range.start, offset) - offset;
    const std::uint64_t to = std::min(range.end - offset, window.size());
    std::ranges::fill(window.subspan(filled, from - filled), std::byte{0});
    GCR_TRY(read(offset + from, window.subspan(from, to - from)));
    covered += to - from;
    filled = to;
  }
  std::ranges::fill(window.subspan(filled), std::byte{0});
  return covered;
}

/// Into so many files a memory is divided: the kernel writes a file for one thread at a time.
constexpr std::size_t kMemoryFiles = 8;

/// Room for the header, then for a window: a block that is sent as it is needs no copy.
using Buffer = std::vector<std::byte>;

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
        chooser(options.compression, options.link_bytes_per_s, threads),
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
  void process(Buffer buffer, BlockHeader header, std::uint64_t covered_bytes);
  void read_and_process(Buffer buffer, BlockHeader header, std::span<const AddressRange> ranges,
                        const ReadMemory& read, std::size_t& unread_windows);
  Status add_digest(const BlockHeader& header, std::span<const std::byte> pages);
  Status send(Buffer& buffer, BlockHeader& header);
  Status write_slot(const BlockHeader& header, std::span<std::byte> block);

  transport::Channel& channel;
  const transport::RegionId region;
  Slots slots;
  const WindowDigester digester;
  CodecChooser chooser;

  std::mutex mutex;
  std::condition_variable buffer_released;  // and a window of memory was read
  std::vector<Buffer> free_buffers;
  unsigned buffers_out = 0;
  std::uint32_t next_id = 0;
  std::vector<ImageFile> files;
  std::unordered_map<std::uint32_t, ImageDigest> digests;  // by file
  std::optional<Error> failure;
  std::atomic<std::uint64_t> raw_bytes = 0;
  std::atomic<std::uint64_t> zero_bytes = 0;
  std::atomic<std::uint64_t> sent_bytes = 0;

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

/// Sends the window in `buffer`; the image has `covered_bytes` of it, all others are zero.
void ImageSender::Impl::process(Buffer buffer, BlockHeader header, std::uint64_t covered_bytes) {
  const auto window = window_of(buffer).first(header.raw_bytes);
  header.present = pack(window);
  raw_bytes += covered_bytes;
  zero_bytes += covered_bytes - header.payload_bytes();
  if (header.present.any()) {
    if (const Status sent = send(buffer, header); !sent) fail(sent.error());
  }
  release_buffer(std::move(buffer));
}

/// Counts `unread_windows` down, under `mutex`, when `ranges` and `read` are not used any more.
void ImageSender::Impl::read_and_process(Buffer buffer, BlockHeader header,
                                         std::span<const AddressRange> ranges,
                                         const ReadMemory& read, std::size_t& unread_windows) {
  const auto read_if_healthy = [&]() -> Result<std::uint64_t> {
    GCR_TRY(health());
    return read_window(read, ranges, header.offset, window_of(buffer));
  };
  const auto covered = read_if_healthy();
  if (!covered) fail(covered.error());
  {
    const std::lock_guard lock(mutex);
    --unread_windows;
    buffer_released.notify_all();
  }
  if (!covered) return release_buffer(std::move(buffer));
  process(std::move(buffer), header, *covered);
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
  if (header.codec != Codec::kNone) {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t size = compress(header.codec, payload, window_of(compressed));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    chooser.observe(header.codec, payload.size(), size != 0 ? size : payload.size(), took.count());
    if (size != 0) {
      header.stored_bytes = static_cast<std::uint32_t>(size);
      return write_slot(header, std::span(compressed).first(kBlockHeaderBytes + size));
    }
    header.codec = Codec::kNone;
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
    BlockHeader header;
    header.file = file.id;
    header.offset = file.size_bytes;
    header.raw_bytes = static_cast<std::uint32_t>(*got);
    file.size_bytes += *got;
    asio::post(impl_->workers, [impl = impl_.get(), buffer = std::move(buffer), header]() mutable {
      impl->process(std::move(buffer), header, header.raw_bytes);
    });
    if (*got < kWindowBytes) break;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->files.push_back(std::move(file));
  return {};
}

Status ImageSender::take_memory(const std::string& name, std::span<const AddressRange> ranges,
                                const ReadMemory& read) {
  if (!ranges.empty() && ranges.back().end > kMaxFileBytes) {
    return Error(Code::kUnsupported,
                 fmt::format("{} has memory at {:#x}, beyond 2^47", name, ranges.back().end));
  }
  std::vector<ImageFile> files;
  std::size_t unread_windows = 0;
  std::uint64_t end = 0;
  for (std::size_t turn = 0; !ranges.empty() && impl_->health();) {
    if (ranges.front().end <= end) {
      ranges = ranges.subspan(1);
      continue;
    }
    if (files.size() <= turn) {
      auto file = impl_->new_file(fmt::format("{}-{}.img", name, turn));
      if (!file) {
        impl_->fail(file.error());
        break;
      }
      files.push_back(std::move(*file));
    }
    ImageFile& file = files[turn];
    turn = (turn + 1) % kMemoryFiles;
    Buffer buffer = impl_->acquire_buffer();
    BlockHeader header;
    header.file = file.id;
    header.offset = std::max(end, ranges.front().start / kWindowBytes * kWindowBytes);
    header.raw_bytes = kWindowBytes;
    end = header.offset + kWindowBytes;
    file.size_bytes = end;
    {
      const std::lock_guard lock(impl_->mutex);
      ++unread_windows;
    }
    asio::post(impl_->workers, [impl = impl_.get(), buffer = std::move(buffer), header, ranges,
                                &read, &unread_windows]() mutable {
      impl->read_and_process(std::move(buffer), header, ranges, read, unread_windows);
    });
  }
  std::unique_lock lock(impl_->mutex);
  impl_->buffer_released.wait(lock, [&] { return unread_windows == 0; });
  if (impl_->failure) return *impl_->failure;
  std::ranges::move(files, std::back_inserter(impl_->files));
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
  return SentImages{impl_->files, impl_->raw_bytes, impl_->zero_bytes, impl_->sent_bytes,
                    impl_->chooser.chosen()};
}

Status take_directory(Sink& sink, const std::string& directory, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() != ".img") continue;
    UniqueFd file(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
      return Error::from_errno(errno, fmt::format("cannot open {}", at->path().string()));
    }
    GCR_TRY(sink.take(prefix + at->path().filename().string(), std::move(file)));
  }
  if (error) {
    return Error::from_errno(error.value(), fmt::format("cannot list {}", directory));
  }
  return {};
}

}  // namespace gcr::images

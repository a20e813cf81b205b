#include "migrate-agent/mover/chunk_reader.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

struct Chunk {
  std::size_t buffer_index = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// Hands out every chunk once, and remembers the first error.
class Work {
 public:
  explicit Work(std::span<const Vram* const> buffers) : buffers_(buffers) {
    first_chunk_.reserve(buffers.size() + 1);
    std::uint64_t chunks = 0;
    for (const Vram* buffer : buffers) {
      first_chunk_.push_back(chunks);
      chunks += round_up(buffer->size_bytes(), kChunkBytes) / kChunkBytes;
    }
    first_chunk_.push_back(chunks);
  }

  std::optional<Chunk> claim() {
    const std::uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
    if (failed_.load(std::memory_order_relaxed) || chunk >= first_chunk_.back())
      return std::nullopt;
    const auto after = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
    const auto index = static_cast<std::size_t>(after - first_chunk_.begin()) - 1;
    const std::uint64_t offset = (chunk - first_chunk_[index]) * kChunkBytes;
    return Chunk{index, offset, std::min(kChunkBytes, buffers_[index]->size_bytes() - offset)};
  }

  const Vram& buffer(const Chunk& chunk) const { return *buffers_[chunk.buffer_index]; }
  std::uint64_t chunks() const { return first_chunk_.back(); }

  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_ = true;
  }

  Status status() const {
    if (error_) return *error_;
    return {};
  }

 private:
  std::span<const Vram* const> buffers_;
  std::vector<std::uint64_t> first_chunk_;  // index of each buffer's first chunk, then the total
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::optional<Error> error_;
};

/// One thread's staging memory and its stream on every GPU that it meets.
class Reader {
 public:
  Reader(Work& work, std::span<std::byte> staging) : work_(work), staging_(staging) {}

  Status run(const ChunkSink& sink) {
    std::optional<Chunk> current = work_.claim();
    if (current) GCR_TRY(begin_copy(*current));
    while (current) {
      GCR_TRY(streams_.at(&work_.buffer(*current).context()).synchronize());
      const std::span<const std::byte> bytes = half().first(current->length);
      use_second_half_ = !use_second_half_;
      const std::optional<Chunk> next = work_.claim();
      if (next) GCR_TRY(begin_copy(*next));
      GCR_TRY(sink(current->buffer_index, current->offset, bytes));
      current = next;
    }
    return {};
  }

 private:
  std::span<std::byte> half() const {
    return staging_.subspan(use_second_half_ ? kChunkBytes : 0, kChunkBytes);
  }

  Status begin_copy(const Chunk& chunk) {
    const Vram& buffer = work_.buffer(chunk);
    GCR_TRY(buffer.context().enter());
    auto stream = streams_.find(&buffer.context());
    if (stream == streams_.end()) {
      GCR_ASSIGN(Stream created, Stream::create(buffer.shared_context()));
      stream = streams_.emplace(&buffer.context(), std::move(created)).first;
    }
    const CudaDriver& driver = buffer.context().driver();
    return driver.check(driver.cuMemcpyDtoHAsync_v2(half().data(), buffer.address() + chunk.offset,
                                                    chunk.length, stream->second.get()),
                        "cannot read VRAM");
  }

  Work& work_;
  std::span<std::byte> staging_;
  bool use_second_half_ = false;
  std::map<const GpuContext*, Stream> streams_;
};

}  // namespace

Status read_chunks(std::span<const Vram* const> buffers, unsigned threads, const ChunkSink& sink) {
  if (buffers.empty()) return {};
  Work work(buffers);
  const auto count = static_cast<unsigned>(
      std::clamp<std::uint64_t>(threads, 1, std::max<std::uint64_t>(1, work.chunks())));
  std::vector<PinnedBuffer> staging;
  for (unsigned i = 0; i < count; ++i) {
    GCR_ASSIGN(auto pinned,
               PinnedBuffer::create(buffers.front()->shared_context(), 2 * kChunkBytes));
    staging.push_back(std::move(pinned));
  }
  {
    std::vector<std::jthread> readers;
    readers.reserve(staging.size());
    for (const PinnedBuffer& pinned : staging) {
      readers.emplace_back([&work, &sink, bytes = pinned.bytes()] {
        Reader reader(work, bytes);
        if (Status status = reader.run(sink); !status) work.fail(std::move(status).error());
      });
    }
  }
  return work.status();
}

}  // namespace gcr::mover

#include "migrate-agent/mover/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

namespace gcr::mover {
namespace {

constexpr std::size_t kBatchChunks = 4;
constexpr std::size_t kBatchBytes = kBatchChunks * kChunkBytes;

/// What a slot reports through, in page-locked memory after the bytes.
struct Report {
  std::array<ChunkInVram, kBatchChunks> chunks;
  std::array<digest::Digest, kBatchChunks> digests;
};

/// Hands out the batches, each of one GPU, and remembers the first error.
class Batches {
 public:
  Batches(std::span<const ChunkRef> chunks, std::size_t batch_chunks) {
    std::size_t start = 0;
    for (std::size_t i = 1; i <= chunks.size(); ++i) {
      if (i < chunks.size() && i - start < batch_chunks &&
          &chunks[i].vram->context() == &chunks[start].vram->context()) {
        continue;
      }
      batches_.push_back(chunks.subspan(start, i - start));
      start = i;
    }
  }

  std::span<const ChunkRef> claim() {
    const std::size_t batch = next_.fetch_add(1, std::memory_order_relaxed);
    if (failed_.load(std::memory_order_relaxed) || batch >= batches_.size()) return {};
    return batches_[batch];
  }

  std::size_t count() const { return batches_.size(); }

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
  std::vector<std::span<const ChunkRef>> batches_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace

/// Room for one batch, and the stream on which it is under way.
class SnapshotReader::Slot {
 public:
  Status prepare(const std::shared_ptr<GpuContext>& context);

  /// Starts the copies of `chunks`, which may be none.
  Status start(std::span<const ChunkRef> chunks, const VramDigester& digester);

  /// Waits for them and hands them on.
  Status finish(const ChunkSink& sink);

  /// Waits until nothing is under way any more.
  void settle() {
    if (!chunks_.empty()) (void)gpus_.at(&chunks_.front().vram->context()).stream.synchronize();
    chunks_ = {};
  }

  bool busy() const { return !chunks_.empty(); }

 private:
  struct Gpu {
    Stream stream;
    std::optional<DeviceMemory> snapshot;
  };
  Report& report() const {
    return *reinterpret_cast<Report*>(memory_->bytes().data() + kBatchBytes);
  }
  Status copy_aside(const Gpu& gpu);
  Status copy_out(const Gpu& gpu);

  std::unique_ptr<PinnedBuffer> memory_;
  std::map<const GpuContext*, Gpu> gpus_;
  std::span<const ChunkRef> chunks_;
};

Status SnapshotReader::Slot::prepare(const std::shared_ptr<GpuContext>& context) {
  if (gpus_.contains(context.get())) return {};
  if (memory_ == nullptr) {
    GCR_ASSIGN(auto memory, PinnedBuffer::create(context, kBatchBytes + sizeof(Report)));
    memory_ = std::make_unique<PinnedBuffer>(std::move(memory));
  }
  GCR_ASSIGN(Stream stream, Stream::create(context));
  auto snapshot = DeviceMemory::create(context, kBatchBytes);
  if (!snapshot && snapshot.error().code() != Code::kResourceExhausted) return snapshot.error();
  gpus_.emplace(context.get(), Gpu{std::move(stream),
                                   snapshot ? std::optional(std::move(*snapshot)) : std::nullopt});
  return {};
}

Status SnapshotReader::Slot::copy_aside(const Gpu& gpu) {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const ChunkRef& chunk = chunks_[i];
    const CudaDriver& driver = chunk.vram->context().driver();
    const std::uint64_t place = i * kChunkBytes;
    CUdeviceptr copy = 0;
    CUresult copied = CUDA_SUCCESS;
    if (gpu.snapshot) {
      copy = gpu.snapshot->address() + place;
      copied =
          driver.cuMemcpyDtoDAsync_v2(copy, chunk.address(), chunk.length_bytes, gpu.stream.get());
    } else {
      std::byte* host = memory_->bytes().data() + place;
      copy = reinterpret_cast<CUdeviceptr>(host);
      copied =
          driver.cuMemcpyDtoHAsync_v2(host, chunk.address(), chunk.length_bytes, gpu.stream.get());
    }
    GCR_TRY(driver.check(copied, "cannot take a snapshot of VRAM"));
    report().chunks[i] = {copy, chunk.length_bytes};
  }
  return {};
}

Status SnapshotReader::Slot::copy_out(const Gpu& gpu) {
  if (!gpu.snapshot) return {};
  // One copy for all: the places of short chunks are as long as those of others.
  const std::size_t length = (chunks_.size() - 1) * kChunkBytes + chunks_.back().length_bytes;
  const CudaDriver& driver = chunks_.front().vram->context().driver();
  return driver.check(driver.cuMemcpyDtoHAsync_v2(memory_->bytes().data(), gpu.snapshot->address(),
                                                  length, gpu.stream.get()),
                      "cannot read VRAM");
}

Status SnapshotReader::Slot::start(std::span<const ChunkRef> chunks, const VramDigester& digester) {
  if (chunks.empty()) return {};
  GCR_TRY(prepare(chunks.front().vram->shared_context()));
  const GpuContext& context = chunks.front().vram->context();
  GCR_TRY(context.enter());
  chunks_ = chunks;
  const Gpu& gpu = gpus_.at(&context);
  GCR_TRY(copy_aside(gpu));
  GCR_TRY(digester.on(context).enqueue(report().chunks.data(), chunks_.size(),
                                       report().digests.data(), gpu.stream.get()));
  return copy_out(gpu);
}

Status SnapshotReader::Slot::finish(const ChunkSink& sink) {
  GCR_TRY(gpus_.at(&chunks_.front().vram->context()).stream.synchronize());
  const auto chunks = std::exchange(chunks_, {});
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    GCR_TRY(sink(chunks[i], report().digests[i],
                 memory_->bytes().subspan(i * kChunkBytes, chunks[i].length_bytes)));
  }
  return {};
}

SnapshotReader::SnapshotReader(const VramDigester& digester, unsigned threads)
    : digester_(digester) {
  for (unsigned i = 0; i < 2 * std::max(1U, threads); ++i) {
    slots_.push_back(std::make_unique<Slot>());
  }
}

SnapshotReader::~SnapshotReader() = default;

Status SnapshotReader::prepare(const std::shared_ptr<GpuContext>& context) {
  for (const auto& slot : slots_) GCR_TRY(slot->prepare(context));
  return {};
}

Status SnapshotReader::read(std::span<const ChunkRef> chunks, const ChunkSink& sink) {
  const std::size_t batch_chunks =
      std::clamp<std::size_t>(chunks.size() / slots_.size(), 1, kBatchChunks);
  Batches batches(chunks, batch_chunks);
  const auto work = [&](Slot& first, Slot& second) -> Status {
    std::array<Slot*, 2> pair = {&first, &second};
    GCR_TRY(first.start(batches.claim(), digester_));
    GCR_TRY(second.start(batches.claim(), digester_));
    for (std::size_t turn = 0; pair[turn]->busy(); turn = 1 - turn) {
      GCR_TRY(pair[turn]->finish(sink));
      GCR_TRY(pair[turn]->start(batches.claim(), digester_));
    }
    return {};
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t count = std::min(slots_.size() / 2, (batches.count() + 1) / 2);
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        Slot& first = *slots_[2 * i];
        Slot& second = *slots_[2 * i + 1];
        if (Status status = work(first, second); !status) batches.fail(std::move(status).error());
        first.settle();
        second.settle();
      });
    }
  }
  return batches.status();
}

}  // namespace gcr::mover

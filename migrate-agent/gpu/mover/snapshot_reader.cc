// How chunks are read: they are cut into batches, each of one GPU, and each batch uses one of a few
// slots in turn. A slot copies its chunks aside, digests the copies, and copies them to page-locked
// memory, all on one stream. While the threads hand over the chunks of one slot, the GPU fills the
// next ones. A batch is digested by one launch: on a GPU that the application uses too, each launch
// costs a change of contexts. The first thread that needs a batch waits for the GPU, the others for
// that thread; the thread that has handed over a batch's last chunk starts the slot's next batch.
#include "migrate-agent/gpu/mover/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace gcr::mover {
namespace {

constexpr std::size_t kSlots = 3;
constexpr std::size_t kBatchChunks = 16;
constexpr std::size_t kBatchBytes = kBatchChunks * kChunkBytes;

/// A slot's descriptors and digests, in page-locked memory after the bytes.
struct Report {
  std::array<device::Chunk, kBatchChunks> chunks;
  std::array<digest::Digest, kBatchChunks> digests;
};

/// Cuts `chunks` into batches, each of one GPU.
std::vector<std::span<const VramChunk>> batches_of(std::span<const VramChunk> chunks,
                                                   std::size_t batch_chunks) {
  std::vector<std::span<const VramChunk>> batches;
  std::size_t start = 0;
  for (std::size_t i = 1; i <= chunks.size(); ++i) {
    if (i < chunks.size() && i - start < batch_chunks &&
        &chunks[i].vram->gpu() == &chunks[start].vram->gpu()) {
      continue;
    }
    batches.push_back(chunks.subspan(start, i - start));
    start = i;
  }
  return batches;
}

}  // namespace

/// Room for one batch, and the stream on which it is copied.
class SnapshotReader::Slot {
 public:
  Status prepare(const std::shared_ptr<device::Gpu>& on);

  /// Starts the copies of `chunks`, at least one. Even after a failure settle() is needed.
  Status start(std::span<const VramChunk> chunks, const VramDigester& digester);

  /// Waits for what was started.
  Status wait() { return gpus_.at(&chunks_.front().vram->gpu()).stream->synchronize(); }

  /// As wait(), if anything was started since the last settle().
  void settle() {
    if (!chunks_.empty()) (void)wait();
    chunks_ = {};
  }

  /// The memory that chunks are handed over from; empty before prepare().
  std::span<const std::byte> bytes() const {
    return memory_ == nullptr ? std::span<const std::byte>() : memory_->bytes().first(kBatchBytes);
  }

  /// Hands over the chunk `index` of the batch, after wait().
  Status hand_over(std::size_t index, const ChunkSink& sink) {
    return sink(chunks_[index], report().digests[index],
                memory_->bytes().subspan(index * kChunkBytes, chunks_[index].length_bytes));
  }

 private:
  struct Place {
    std::unique_ptr<device::Stream> stream;
    std::unique_ptr<device::Scratch> snapshot;  ///< null: the GPU has no VRAM left
  };
  Report& report() const {
    return *reinterpret_cast<Report*>(memory_->bytes().data() + kBatchBytes);
  }
  Status copy_aside(const Place& place);
  Status copy_run(const Place& place, std::size_t first, std::uint64_t length);
  Status copy_out(const Place& place);

  std::unique_ptr<device::HostMemory> memory_;
  std::map<const device::Gpu*, Place> gpus_;
  std::span<const VramChunk> chunks_;
};

Status SnapshotReader::Slot::prepare(const std::shared_ptr<device::Gpu>& on) {
  if (gpus_.contains(on.get())) return {};
  if (memory_ == nullptr) {
    GCR_ASSIGN(memory_, on->pinned(kBatchBytes + sizeof(Report)));
  }
  Place place;
  GCR_ASSIGN(place.stream, on->stream());
  auto snapshot = on->scratch(kBatchBytes);
  if (!snapshot && snapshot.error().code() != Code::kResourceExhausted) return snapshot.error();
  if (snapshot) place.snapshot = std::move(*snapshot);
  gpus_.emplace(on.get(), std::move(place));
  return {};
}

Status SnapshotReader::Slot::copy_aside(const Place& place) {
  const device::Address to = place.snapshot ? place.snapshot->address() : memory_->address();
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    report().chunks[i] = {to + i * kChunkBytes, chunks_[i].length_bytes};
  }
  // Adjacent chunks are one copy: each copy may cost the application a change of contexts.
  for (std::size_t i = 0, end = 0; i < chunks_.size(); i = end) {
    std::uint64_t length = chunks_[i].length_bytes;
    const auto follows = [&](const VramChunk& chunk) {
      return chunk.vram == chunks_[i].vram && chunk.address() == chunks_[i].address() + length;
    };
    for (end = i + 1; end < chunks_.size() && follows(chunks_[end]); ++end) {
      length += chunks_[end].length_bytes;
    }
    const Status copied = copy_run(place, i, length);
    if (!copied) return copied.error().while_doing("cannot take a snapshot of VRAM");
  }
  return {};
}

Status SnapshotReader::Slot::copy_run(const Place& place, std::size_t first, std::uint64_t length) {
  const device::Address from = chunks_[first].address();
  const std::uint64_t at = first * kChunkBytes;
  if (!place.snapshot) return place.stream->copy_out(memory_->bytes().data() + at, from, length);
  return place.stream->copy_within(place.snapshot->address() + at, from, length);
}

Status SnapshotReader::Slot::copy_out(const Place& place) {
  if (!place.snapshot) return {};
  // One copy for all: short chunks have places of full length.
  const std::size_t length = (chunks_.size() - 1) * kChunkBytes + chunks_.back().length_bytes;
  const Status copied =
      place.stream->copy_out(memory_->bytes().data(), place.snapshot->address(), length);
  return copied ? copied : copied.error().while_doing("cannot read VRAM");
}

Status SnapshotReader::Slot::start(std::span<const VramChunk> chunks,
                                   const VramDigester& digester) {
  device::Gpu& gpu = chunks.front().vram->gpu();
  GCR_TRY(prepare(gpu.shared_from_this()));
  chunks_ = chunks;
  const Place& place = gpus_.at(&gpu);
  GCR_TRY(copy_aside(place));
  GCR_TRY(digester.on(gpu).enqueue(report().chunks.data(), chunks_.size(), report().digests.data(),
                                   *place.stream));
  return copy_out(place);
}

/// One read(): batch b uses slot b modulo the number of slots. Chunks are handed over in order,
/// each by a free thread.
class SnapshotReader::Run {
 public:
  Run(SnapshotReader& reader, std::span<const VramChunk> chunks, unsigned threads,
      const ChunkSink& sink)
      : reader_(reader),
        thread_count_(std::max(1U, threads)),
        sink_(sink),
        batches_(batches_of(
            chunks, std::clamp<std::size_t>(chunks.size() / (2 * kSlots), 1, kBatchChunks))) {}

  Status run() {
    start_batches();
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < thread_count_; ++i) threads.emplace_back([this] { work(); });
    }
    for (const auto& slot : reader_.slots_) slot->settle();
    if (error_) return *error_;
    return {};
  }

 private:
  enum class State { kFree, kCopying, kAwaited, kReady };
  struct Turn {
    State state = State::kFree;
    std::size_t left = 0;  // chunks that were not handed over yet
  };
  struct Claim {
    std::size_t batch;
    std::size_t chunk;
  };

  Slot& slot_of(std::size_t batch) const { return *reader_.slots_[batch % kSlots]; }
  Turn& turn_of(std::size_t batch) { return turns_[batch % kSlots]; }

  /// Starts batches in order while the slot of the next one is free. Under the mutex, or before
  /// there are threads.
  void start_batches() {
    for (; started_ < batches_.size() && turn_of(started_).state == State::kFree; ++started_) {
      turn_of(started_) = {State::kCopying, batches_[started_].size()};
      if (Status status = slot_of(started_).start(batches_[started_], reader_.digester_); !status) {
        return fail(std::move(status).error());
      }
    }
  }

  /// Under the mutex.
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }

  /// The next chunk, once its slot was started; nothing at the end or after a failure.
  std::optional<Claim> claim(std::unique_lock<std::mutex>& lock) {
    changed_.wait(
        lock, [&] { return error_ || next_.batch == batches_.size() || next_.batch < started_; });
    if (error_ || next_.batch == batches_.size()) return std::nullopt;
    const Claim claimed = next_;
    if (++next_.chunk == batches_[next_.batch].size()) next_ = {next_.batch + 1, 0};
    return claimed;
  }

  /// Returns when the batch's copies are complete: the first thread waits for the GPU.
  void await(std::size_t batch, std::unique_lock<std::mutex>& lock) {
    Turn& turn = turn_of(batch);
    if (turn.state == State::kCopying) {
      turn.state = State::kAwaited;
      lock.unlock();
      Status arrived = slot_of(batch).wait();
      lock.lock();
      if (!arrived) return fail(std::move(arrived).error());
      turn.state = State::kReady;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return error_ || turn.state == State::kReady; });
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (const auto claimed = claim(lock)) {
      await(claimed->batch, lock);
      if (error_) return;
      lock.unlock();
      Status handed = slot_of(claimed->batch).hand_over(claimed->chunk, sink_);
      lock.lock();
      if (!handed) return fail(std::move(handed).error());
      Turn& turn = turn_of(claimed->batch);
      if (--turn.left > 0) continue;
      turn.state = State::kFree;
      start_batches();
      changed_.notify_all();
    }
  }

  SnapshotReader& reader_;
  const unsigned thread_count_;
  const ChunkSink& sink_;
  const std::vector<std::span<const VramChunk>> batches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Turn, kSlots> turns_{};
  std::size_t started_ = 0;  // batches
  Claim next_{0, 0};
  std::optional<Error> error_;
};

SnapshotReader::SnapshotReader(const VramDigester& digester) : digester_(digester) {
  for (std::size_t i = 0; i < kSlots; ++i) slots_.push_back(std::make_unique<Slot>());
}

SnapshotReader::~SnapshotReader() = default;

Status SnapshotReader::prepare(const std::shared_ptr<device::Gpu>& gpu) {
  for (const auto& slot : slots_) GCR_TRY(slot->prepare(gpu));
  return {};
}

Status SnapshotReader::read(std::span<const VramChunk> chunks, unsigned threads,
                            const ChunkSink& sink) {
  if (chunks.empty()) return {};
  return Run(*this, chunks, threads, sink).run();
}

std::vector<std::span<const std::byte>> SnapshotReader::memory() const {
  std::vector<std::span<const std::byte>> memory;
  for (const auto& slot : slots_) {
    if (!slot->bytes().empty()) memory.push_back(slot->bytes());
  }
  return memory;
}

}  // namespace gcr::mover

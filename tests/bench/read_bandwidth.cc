// How fast the mover reads VRAM while it digests it, compared with a plain copy of the same VRAM
// into the same kind of host memory, in one run. Also with a GPU so full that no snapshot fits.
// Prints a table on standard output and one JSON line per value on standard error.
//
// Usage: bench_read [GIGABYTES_OF_VRAM]        default: a quarter of a GiB
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/mover/snapshot_reader.h"

namespace {

using namespace gcr;         // NOLINT(google-build-using-namespace)
using namespace gcr::mover;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The best of several runs, in GB/s.
template <class Run>
Result<double> best_rate(std::uint64_t bytes, Run&& run) {
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = Clock::now();
    GCR_TRY(run());
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start) / 1e9);
  }
  return best;
}

struct Bench {
  std::shared_ptr<device::Gpu> gpu;
  struct Buffer {
    std::unique_ptr<device::Allocation> vram;
  };
  std::map<AllocationId, Buffer> buffers;
  std::vector<VramChunk> chunks;
  std::uint64_t bytes = 0;

  Status make(std::uint64_t size_bytes) {
    constexpr std::uint64_t kPiece = 512 * kMiB;
    while (bytes < size_bytes) {
      const std::uint64_t piece = std::min(kPiece, size_bytes - bytes);
      GCR_ASSIGN(auto vram, gpu->create(piece, std::nullopt));
      buffers.emplace(AllocationId{buffers.size()}, Buffer{std::move(vram)});
      bytes += piece;
    }
    chunks = chunks_of(buffers);
    return {};
  }

  /// One stream, copies of the driver's preferred size, into page-locked memory.
  Result<double> plain() {
    constexpr std::size_t kHost = 256 * kMiB;
    GCR_ASSIGN(auto host, gpu->pinned(kHost));
    GCR_ASSIGN(auto stream, gpu->stream());
    return best_rate(bytes, [&]() -> Status {
      for (const auto& [id, buffer] : buffers) {
        const device::Allocation& vram = *buffer.vram;
        for (std::uint64_t at = 0; at < vram.size_bytes(); at += kHost) {
          const std::uint64_t length = std::min<std::uint64_t>(kHost, vram.size_bytes() - at);
          GCR_TRY(stream->copy_out(host->bytes().data(), vram.address() + at, length));
        }
      }
      return stream->synchronize();
    });
  }

  Result<double> mover(VramDigester& digester, unsigned threads) {
    SnapshotReader reader(digester);
    GCR_TRY(reader.prepare(gpu));
    std::atomic<std::uint64_t> seen = 0;
    GCR_ASSIGN(const double rate, best_rate(bytes, [&] {
                 return reader.read(chunks, threads,
                                    [&](const ChunkRef& chunk, const digest::Digest&,
                                        std::span<const std::byte>) -> Status {
                                      seen += chunk.length_bytes;
                                      return {};
                                    });
               }));
    if (seen != kRepetitions * bytes) return Error(Code::kInternal, "not every chunk was read");
    return rate;
  }
};

void report(const std::string& what, unsigned threads, double rate, double plain) {
  fmt::print("  {:<34} {:>2} {:>8.2f} GB/s {:>7.3f}\n", what, threads, rate, rate / plain);
  fmt::print(stderr,
             "{{\"bench\": \"read\", \"what\": \"{}\", \"threads\": {}, \"gb_per_s\": {:.3f}, "
             "\"of_plain\": {:.4f}}}\n",
             what, threads, rate, rate / plain);
}

Status run(double gibibytes) {
  GCR_ASSIGN(const auto driver, device::cuda::load());
  Bench bench;
  GCR_ASSIGN(bench.gpu, driver->open(driver->gpus().front()));
  const auto size = round_up(static_cast<std::uint64_t>(gibibytes * kGiB), kChunkBytes);
  GCR_TRY(bench.make(size));
  std::array<std::byte, 32> secret{};
  secret[0] = std::byte{1};
  VramDigester digester(digest::DigestKey::expand(secret));
  GCR_TRY(digester.prepare(bench.gpu, bench.chunks.size()));
  GCR_ASSIGN(const double plain, bench.plain());
  fmt::print("reading {} of VRAM on {}\n", format_bytes(bench.bytes), driver->gpus().front().name);
  report("plain copy", 1, plain, plain);
  for (const unsigned threads : {1U, 2U, 4U, 8U}) {
    GCR_ASSIGN(const double rate, bench.mover(digester, threads));
    report("mover", threads, rate, plain);
  }
  // The memory of streams and of launches is allocated by now; the rest is filled to the last 4
  // MiB.
  std::vector<std::unique_ptr<device::Scratch>> filling;
  for (std::uint64_t piece = bench.bytes; piece >= 4 * kMiB; piece /= 2) {
    while (auto memory = bench.gpu->scratch(piece)) {
      filling.push_back(std::move(*memory));
    }
  }
  if (!filling.empty()) filling.pop_back();
  GCR_ASSIGN(const double rate, bench.mover(digester, 2));
  report("mover, no VRAM for copies aside", 2, rate, plain);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? std::atof(argv[1]) : 0.25);
  if (status) return 0;
  fmt::print(stderr, "bench_read: {}\n", status.error().message());
  return 1;
}

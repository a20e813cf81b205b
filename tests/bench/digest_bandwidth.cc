// The speed of digests, compared with that of the memory: on a GPU, in one run, a plain read of
// VRAM, the digest of the same bytes, the latency of small launches, and a copy to page-locked
// memory; on the CPU, a plain read, a copy and the digest. Prints a table and, with --json, a line
// per value.
//
// The software GPU's kernels run on the CPU, so without --gpu only the CPU is measured.
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "migrate-agent/gpu/device/cuda/library.h"
#include "src/base/units.h"
#include "tests/bench/read_kernel_ptx.h"
#include "tests/support/command_line.h"

namespace gcr::bench {
namespace {

using device::Chunk;

struct Options {
  bool gpu = false;
  bool json = false;
  std::uint64_t vram_mib = 32 * kKiB;
  std::uint64_t host_mib = 512;
  int repetitions = 15;
};

constexpr std::uint64_t kSeedBytes = 64 * kMiB;
constexpr std::size_t kLatencyRepetitions = 200;

template <class T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

void check(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message());
}

/// The median of the seconds that `work` takes, after one run that does not count.
double median_seconds(std::size_t repetitions, const std::function<void()>& work) {
  std::vector<double> seconds;
  work();
  for (std::size_t i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(repetitions / 2));
  return seconds[repetitions / 2];
}

class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  void add(const std::string& what, double value, const std::string& unit) const {
    fmt::print("{:<44} {:>10.2f} {}\n", what, value, unit);
    if (!json_) return;
    google::protobuf::Struct line;
    (*line.mutable_fields())["bench"].set_string_value("digest");
    (*line.mutable_fields())["what"].set_string_value(what);
    (*line.mutable_fields())["value"].set_number_value(value);
    (*line.mutable_fields())["unit"].set_string_value(unit);
    std::string text;
    if (google::protobuf::util::MessageToJsonString(line, &text).ok()) fmt::print("{}\n", text);
  }

 private:
  bool json_;
};

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> words(size / 8);
  std::ranges::generate(words, std::ref(random));
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), words.data(), size);
  return bytes;
}

digest::DigestKey some_key() {
  std::array<std::byte, 32> secret{};
  secret[0] = std::byte{1};
  return digest::DigestKey::expand(secret);
}

/// A GPU whose VRAM holds `bytes` of random content.
class Gpu {
 public:
  explicit Gpu(std::uint64_t bytes)
      : gpu_(value_of(library_->open(library_->gpus().front()))),
        stream_(value_of(gpu_->stream())),
        vram_(value_of(gpu_->scratch(bytes))),
        bytes_(bytes),
        seed_(random_bytes(std::min(bytes, kSeedBytes))) {
    bench::check(stream_->copy_in(vram(), seed_.data(), seed_.size()));
    for (std::uint64_t have = seed_.size(); have < bytes; have *= 2) {
      bench::check(stream_->copy_within(vram() + have, vram(), std::min(have, bytes - have)));
    }
    synchronize();
  }

  void check(CUresult result, std::string_view doing) const {
    bench::check(library().check(result, doing));
  }
  void synchronize() const { bench::check(stream_->synchronize()); }

  const device::cuda::Library& library() const { return *library_; }
  device::Gpu& gpu() const { return *gpu_; }
  device::Stream& stream() const { return *stream_; }
  CUstream cuda_stream() const { return static_cast<CUstream>(stream_->handle()); }
  device::Address vram() const { return vram_->address(); }
  std::uint64_t bytes() const { return bytes_; }
  /// The content of VRAM, repeated.
  std::span<const std::byte> seed() const { return seed_; }

 private:
  std::shared_ptr<const device::cuda::Library> library_ = value_of(device::cuda::Library::load());
  std::shared_ptr<device::Gpu> gpu_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<device::Scratch> vram_;
  std::uint64_t bytes_;
  std::vector<std::byte> seed_;
};

/// The launch shape of the plain read that is fastest here. Returns bytes per second.
double read_vram(const Gpu& gpu, const Options& options) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  gpu.check(gpu.library().load_module(&module, kReadKernelPtx), "load the read kernel");
  gpu.check(gpu.library().find_function(&kernel, module, "gcr_bench_read"), "find it");
  double best = 0;
  for (const unsigned threads : {256U, 512U, 1024U}) {
    for (const unsigned blocks : {132U, 264U, 528U, 1056U, 2112U}) {
      const auto sums = value_of(gpu.gpu().scratch(std::size_t{blocks} * threads * 4));
      CUdeviceptr from = gpu.vram();
      std::uint64_t pieces = gpu.bytes() / 16;
      CUdeviceptr to = sums->address();
      std::array<void*, 3> arguments = {&from, &pieces, &to};
      const double seconds = median_seconds(static_cast<std::size_t>(options.repetitions), [&] {
        gpu.check(gpu.library().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, gpu.cuda_stream(),
                                       arguments.data(), nullptr),
                  "read VRAM");
        gpu.synchronize();
      });
      best = std::max(best, static_cast<double>(gpu.bytes()) / seconds);
    }
  }
  gpu.check(gpu.library().unload_module(module), "unload the read kernel");
  return best;
}

/// All VRAM in chunks, and the destinations of their digests.
class Chunks {
 public:
  explicit Chunks(const Gpu& gpu)
      : count_(gpu.bytes() / kChunkBytes),
        chunks_(value_of(gpu.gpu().pinned(count_ * sizeof(Chunk)))),
        digests_(value_of(gpu.gpu().pinned(count_ * sizeof(digest::Digest)))) {
    for (std::size_t i = 0; i < count_; ++i) {
      chunks()[i] = {gpu.vram() + i * kChunkBytes, static_cast<std::uint32_t>(kChunkBytes)};
    }
  }
  std::size_t count() const { return count_; }
  Chunk* chunks() const { return reinterpret_cast<Chunk*>(chunks_->bytes().data()); }
  digest::Digest* digests() const {
    return reinterpret_cast<digest::Digest*>(digests_->bytes().data());
  }

  /// Fails unless every digest equals the CPU's digest of the chunk.
  void verify(const Gpu& gpu, const digest::DigestKey& key) const {
    const std::size_t distinct = gpu.seed().size() / kChunkBytes;
    for (std::size_t i = 0; i < count_; ++i) {
      const auto chunk = gpu.seed().subspan(i % distinct * kChunkBytes, kChunkBytes);
      const bool right = i < distinct ? digests()[i] == digest::digest_chunk(key, chunk)
                                      : digests()[i] == digests()[i - distinct];
      if (!right) throw std::runtime_error(fmt::format("the digest of chunk {} is wrong", i));
    }
  }

 private:
  std::size_t count_;
  std::unique_ptr<device::HostMemory> chunks_;
  std::unique_ptr<device::HostMemory> digests_;
};

void measure_gpu(const Options& options, const Report& report) {
  const Gpu gpu(options.vram_mib * kMiB);
  const Chunks chunks(gpu);
  const auto digester = value_of(gpu.gpu().digester(some_key()));
  const auto digest = [&](std::size_t count) {
    check(digester->enqueue(chunks.chunks(), count, chunks.digests(), gpu.stream()));
    gpu.synchronize();
  };
  const double read = read_vram(gpu, options);
  const double digested = static_cast<double>(chunks.count() * kChunkBytes) /
                          median_seconds(static_cast<std::size_t>(options.repetitions),
                                         [&] { digest(chunks.count()); });
  chunks.verify(gpu, some_key());
  report.add("GPU: plain read of VRAM", read / 1e9, "GB/s");
  report.add("GPU: digest", digested / 1e9, "GB/s");
  report.add("GPU: digest / plain read", digested / read, "");
  for (const std::size_t count : {1, 4, 16}) {
    report.add(fmt::format("GPU: launch with {} chunks, until its end is seen", count),
               median_seconds(kLatencyRepetitions, [&] { digest(count); }) * 1e6, "us");
  }
  const auto pinned = value_of(gpu.gpu().pinned(kGiB));
  const double copied = median_seconds(5, [&] {
    check(gpu.stream().copy_out(pinned->bytes().data(), gpu.vram(), std::min(gpu.bytes(), kGiB)));
    gpu.synchronize();
  });
  report.add("GPU: copy to page-locked memory",
             static_cast<double>(std::min(gpu.bytes(), kGiB)) / copied / 1e9, "GB/s");
}

void measure_cpu(const Options& options, const Report& report) {
  const std::uint64_t size = options.host_mib * kMiB;
  const auto bytes = random_bytes(size);
  std::vector<std::byte> copy(size);
  const auto gigabytes = [&](const std::function<void()>& work) {
    return static_cast<double>(size) /
           median_seconds(static_cast<std::size_t>(options.repetitions), work) / 1e9;
  };
  volatile std::uint64_t seen = 0;
  report.add("CPU, 1 thread: plain read", gigabytes([&] {
               const auto* first = reinterpret_cast<const std::uint64_t*>(bytes.data());
               seen = std::reduce(first, first + size / 8);
             }),
             "GB/s");
  report.add("CPU, 1 thread: memcpy", gigabytes([&] {
               std::memcpy(copy.data(), bytes.data(), size);
               seen = static_cast<std::uint64_t>(copy[size - 1]);
             }),
             "GB/s");
  const auto key = some_key();
  report.add("CPU, 1 thread: digest", gigabytes([&] {
               for (std::size_t at = 0; at < size; at += kChunkBytes) {
                 seen =
                     digest::digest_chunk(key, std::span(bytes).subspan(at, kChunkBytes)).bytes[0];
               }
             }),
             "GB/s");
}

int run(int argc, char** argv) {
  Options options;
  gcr::test::CommandLine line("How fast digests are, next to the memory's own speed.");
  line.add_flag("--gpu", options.gpu, "Measure the first real GPU too");
  line.add_flag("--json", options.json, "A line of JSON after each figure");
  line.add("--vram-mib", options.vram_mib, "VRAM to read").within(2, kGiB);
  line.add("--host-mib", options.host_mib, "Host memory to read").within(2, kGiB);
  line.add("--repetitions", options.repetitions, "Of each bandwidth; the median counts")
      .within(1, 1000);
  line.parse(argc, argv);
  options.vram_mib -= options.vram_mib % 2;
  options.host_mib -= options.host_mib % 2;
  const Report report(options.json);
  if (options.gpu) measure_gpu(options, report);
  measure_cpu(options, report);
  return 0;
}

}  // namespace
}  // namespace gcr::bench

int main(int argc, char** argv) {
  try {
    return gcr::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_digest: %s\n", error.what());
    return 1;
  }
}

// stencil: N GiB of VRAM in many buffers of different sizes, worked on without pause unless
// --period-ms spreads the steps. Every --report steps it prints "step=<n> checksum=<hex>" over all
// buffers; an undisturbed run with the same options prints the same lines. SIGTERM ends it.
#include <algorithm>
#include <array>

#include "src/base/units.h"
#include "tests/apps/pace.h"
#include "tests/apps/stencil.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

/// Spreads the sizes of small buffers evenly.
constexpr std::uint64_t kSpread = 2654435761;

struct Options {
  std::uint64_t gib = 0;
  std::uint64_t mib = 0;
  std::uint64_t buffers = 0;
  std::uint64_t slice_mib = 4;
  std::uint64_t small = 4;
  std::uint64_t small_kib = 1024;
  std::uint64_t report = 100;
  std::uint64_t steps = 0;
  double period_ms = 0;
  int device = 0;
  bool pool = false;
};

CUdeviceptr allocate(const Gpu& gpu, std::uint64_t bytes, const Options& options) {
  if (!options.pool) return gpu.allocate(bytes);
  CUdeviceptr address = 0;
  gpu.check(gpu.driver().alloc_async(&address, bytes, nullptr), "allocate from the pool");
  return address;
}

/// The requested number, of one size; or sizes cycle through this list until the total is reached.
/// Then small buffers follow.
std::vector<RingBuffer> allocate_buffers(const Gpu& gpu, std::uint64_t total_bytes,
                                         const Options& options) {
  constexpr std::array<std::uint64_t, 7> kSizesMib{64, 2, 32, 6, 256, 16, 128};
  std::vector<RingBuffer> buffers;
  for (std::uint64_t i = 0; i < options.buffers; ++i) {
    const std::uint64_t words = std::max<std::uint64_t>(total_bytes / options.buffers / 8, 1);
    buffers.push_back({allocate(gpu, words * 8, options), words});
  }
  std::uint64_t left = options.buffers == 0 ? total_bytes : 0;
  for (std::size_t i = 0; left >= 2 * kMiB; ++i) {
    const std::uint64_t bytes =
        std::min(kSizesMib[i % kSizesMib.size()] * kMiB, left / (2 * kMiB) * (2 * kMiB));
    buffers.push_back({allocate(gpu, bytes, options), bytes / 8});
    left -= bytes;
  }
  const std::uint64_t most_words = options.small_kib * kKiB / 8;
  for (std::uint64_t i = 1; i <= options.small; ++i) {
    const std::uint64_t words = i * kSpread % most_words + 1;
    buffers.push_back({allocate(gpu, words * 8, options), words});
  }
  return buffers;
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const std::uint64_t total = options.gib * kGiB + options.mib * kMiB;
  Ring ring(gpu, allocate_buffers(gpu, total == 0 ? kGiB : total, options),
            options.slice_mib * kMiB / 8);
  report(0, ring.checksum());
  Pace pace(options.period_ms);
  while (!termination_requested() && (options.steps == 0 || ring.steps() < options.steps)) {
    pace.begin_step();
    ring.step();
    if (ring.steps() % options.report == 0) report(ring.steps(), ring.checksum());
    pace.end_step();
  }
  gpu.synchronize();
  return 0;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Works on VRAM without pause and prints a running checksum");
  line.add("--gib", options.gib, "VRAM to use, in GiB (1 if neither is given)");
  line.add("--mib", options.mib, "VRAM to use, in MiB").excludes("--gib");
  line.add("--buffers", options.buffers, "in so many buffers of one size (0: of different sizes)");
  line.add("--slice-mib", options.slice_mib, "how much one step rewrites").within(1, 65536);
  line.add("--small", options.small, "how many small buffers besides");
  line.add("--small-kib", options.small_kib, "the largest of those; half of that on average")
      .within(1, 2047);
  line.add("--report", options.report, "steps between two lines").positive();
  line.add("--steps", options.steps, "end after so many steps (0: never)");
  line.add("--period-ms", options.period_ms, "the pace, if the GPU keeps it (0: no pause)")
      .within(0.0, 60000.0);
  line.add("--device", options.device, "device ordinal");
  line.add_flag("--pool", options.pool, "take it from the stream-ordered pool");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

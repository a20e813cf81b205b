// pinned: page-locked memory of the driver (cuMemHostAlloc). In each step the CPU writes to one
// piece of it and the GPU to another, by a copy out of VRAM that the step has changed. Prints
// "step=<n> checksum=<hex>" as the stencil does, where the checksum also covers the pieces that
// were written since the last line, and others in turn: in the end all. SIGTERM ends it.
#include <algorithm>

#include "src/base/units.h"
#include "tests/apps/pace.h"
#include "tests/apps/stencil.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kPieceBytes = kMiB;
constexpr std::uint64_t kPieceWords = kPieceBytes / 8;
constexpr std::uint64_t kOthersPerLine = 64;
constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;

struct Options {
  std::uint64_t gib = 0;
  std::uint64_t mib = 64;
  std::uint64_t report = 20;
  std::uint64_t steps = 0;
  double period_ms = 0;
  int device = 0;
};

class Pinned {
 public:
  Pinned(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu), pieces_(bytes / kPieceBytes) {
    void* memory = nullptr;
    gpu.check(gpu.driver().host_alloc(&memory, bytes, 0), "allocate page-locked memory");
    words_ = static_cast<std::uint64_t*>(memory);
    for (std::uint64_t piece = 0; piece < pieces_; ++piece) write(piece, 0);
  }

  /// The GPU writes even pieces, in turn, and the CPU odd ones.
  void step(std::uint64_t number, CUdeviceptr vram, CUstream stream) {
    gpu_.check(gpu_.driver().copy_to_host_async(words_of(2 * number), vram, kPieceBytes, stream),
               "copy to page-locked memory");
    write(2 * number + 1, number);
  }

  /// Of the pieces written by the last `steps` steps, and some others. The GPU must be idle.
  std::uint64_t checksum(std::uint64_t number, std::uint64_t steps) {
    std::uint64_t sum = 0;
    for (std::uint64_t at = 2 * (number + 1 - steps); at < 2 * (number + 1); ++at) {
      sum = add(sum, at);
    }
    for (std::uint64_t i = 0; i < kOthersPerLine; ++i) sum = add(sum, next_other_++);
    return sum;
  }

 private:
  std::uint64_t* words_of(std::uint64_t piece) const {
    return words_ + piece % pieces_ * kPieceWords;
  }
  void write(std::uint64_t piece, std::uint64_t number) const {
    std::uint64_t word = (piece + 1) * kFactor + number;
    for (std::uint64_t i = 0; i < kPieceWords; ++i) words_of(piece)[i] = word += kFactor;
  }
  std::uint64_t add(std::uint64_t sum, std::uint64_t piece) const {
    for (std::uint64_t i = 0; i < kPieceWords; ++i) sum = (sum ^ words_of(piece)[i]) * kFactor;
    return sum;
  }

  const Gpu& gpu_;
  const std::uint64_t pieces_;
  std::uint64_t* words_ = nullptr;
  std::uint64_t next_other_ = 0;
};

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  CUstream stream = nullptr;
  gpu.check(gpu.driver().create_stream(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
  Ring ring(gpu,
            {{gpu.allocate(2 * kPieceBytes), 2 * kPieceWords},
             {gpu.allocate(2 * kPieceBytes), 2 * kPieceWords}},
            kPieceWords);
  const std::uint64_t bytes = options.gib != 0 ? options.gib * kGiB : options.mib * kMiB;
  Pinned pinned(gpu, bytes / (2 * kPieceBytes) * (2 * kPieceBytes));
  Pace pace(options.period_ms);
  while (!termination_requested() && (options.steps == 0 || ring.steps() < options.steps)) {
    pace.begin_step();
    ring.step(stream);
    pinned.step(ring.steps(), ring.buffers()[0].address, stream);
    gpu.check(gpu.driver().synchronize_stream(stream), "synchronise the stream");
    if (ring.steps() % options.report == 0) {
      report(ring.steps(), ring.checksum() + pinned.checksum(ring.steps(), options.report));
    }
    pace.end_step();
  }
  gpu.synchronize();
  return 0;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Page-locked memory that the CPU and the GPU write to");
  line.add("--gib", options.gib, "GiB of it").within(0, 4096);
  line.add("--mib", options.mib, "MiB of it, without --gib").within(2, 65536);
  line.add("--report", options.report, "steps between two lines").positive();
  line.add("--steps", options.steps, "end after so many steps (0: never)");
  line.add("--period-ms", options.period_ms, "the pace, if the GPU keeps it (0: no pause)")
      .within(0.0, 60000.0);
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

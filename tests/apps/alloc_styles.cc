// alloc_styles: the stencil with every kind of allocation that programs use: plain and pitched
// allocations, address space that grows by mapped pieces (like PyTorch's expandable segments), the
// stream-ordered pool; plus copies to pinned host memory, and a captured graph that is replayed.
// Prints "step=<n> checksum=<hex>" as the stencil does, where the checksum also covers the host
// memory written by the copies and the graph. SIGTERM ends it.
#include <algorithm>
#include <string>

#include "src/base/units.h"
#include "tests/apps/pace.h"
#include "tests/apps/stencil.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kPinnedWords = 4096;
constexpr std::size_t kReservedBytes = 256 * kMiB;

struct Options {
  std::uint64_t mib = 16;
  std::uint64_t report = 50;
  std::uint64_t steps = 0;
  double period_ms = 0;
  int device = 0;
};

RingBuffer allocate_pitched(const Gpu& gpu, std::uint64_t bytes) {
  constexpr std::size_t kWidth = 4000;
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  const std::size_t rows = std::max<std::size_t>(bytes / kWidth, 1);
  gpu.check(gpu.driver().alloc_pitch(&address, &pitch, kWidth, rows, 8), "allocate rows");
  return {address, pitch * rows / 8};
}

/// One range of addresses, filled with pieces of 2 MiB; the last piece is freed and allocated
/// again, so that the process has made every call of this kind.
RingBuffer allocate_growing(const Gpu& gpu, std::uint64_t bytes) {
  const Driver& driver = gpu.driver();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  std::size_t piece = 0;
  gpu.check(driver.granularity(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "ask for the granularity");
  CUdeviceptr start = 0;
  gpu.check(driver.reserve(&start, std::max(kReservedBytes, round_up(bytes, piece)), 0, 0, 0),
            "reserve addresses");
  const auto grow = [&](CUdeviceptr at) {
    CUmemGenericAllocationHandle handle = 0;
    gpu.check(driver.create(&handle, piece, &properties, 0), "create memory");
    gpu.check(driver.map(at, piece, 0, handle, 0), "map memory");
    gpu.check(driver.set_access(at, piece, &access, 1), "give access");
    gpu.check(driver.release(handle), "release the handle");
  };
  const std::uint64_t whole = round_up(bytes, piece);
  for (std::uint64_t at = 0; at < whole; at += piece) grow(start + at);
  gpu.check(driver.unmap(start + whole - piece, piece), "unmap the last piece");
  grow(start + whole - piece);
  return {start, whole / 8};
}

RingBuffer allocate_from_pool(const Gpu& gpu, std::uint64_t bytes, CUstream stream) {
  const Driver& driver = gpu.driver();
  CUdeviceptr short_lived = 0;
  CUdeviceptr address = 0;
  gpu.check(driver.alloc_async(&short_lived, bytes, stream), "allocate from the pool");
  gpu.check(driver.alloc_async(&address, bytes, stream), "allocate from the pool");
  gpu.check(driver.free_async(short_lived, stream), "free into the pool");
  gpu.check(driver.synchronize_stream(stream), "synchronise the stream");
  return {address, bytes / 8};
}

/// Copies a part of a buffer into pinned memory, then changes that part: replayed with every step.
CUgraphExec capture_graph(const Gpu& gpu, const RingBuffer& buffer, void* pinned,
                          CUdeviceptr scratch, CUstream stream) {
  const Driver& driver = gpu.driver();
  gpu.check(driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin a capture");
  gpu.check(driver.copy_to_host_async(pinned, buffer.address, kPinnedWords * 8, stream),
            "capture a copy");
  gpu.check(driver.set_words_async(scratch, 0x5a5a5a5a, 1024, stream), "capture a fill");
  gpu.launch("gcr_stencil_checksum", {buffer.address, kPinnedWords, 1, scratch + 8192}, 256,
             stream);
  CUgraph graph = nullptr;
  gpu.check(driver.end_capture(stream, &graph), "end the capture");
  CUgraphExec exec = nullptr;
  gpu.check(driver.instantiate(&exec, graph, 0), "instantiate the graph");
  return exec;
}

/// The attributes of a pointer, which libraries read before they copy, must not change.
void expect_on_device(const Gpu& gpu, const RingBuffer& buffer) {
  int device = -1;
  gpu.check(
      gpu.driver().pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, buffer.address),
      "ask which device a buffer is on");
  if (device != gpu.device()) {
    fail("ask which device a buffer is on", "it is said to be on " + std::to_string(device));
  }
}

std::uint64_t mix(const std::uint64_t* words, std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15;
  return sum;
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const Driver& driver = gpu.driver();
  const std::uint64_t bytes = options.mib * kMiB;
  CUstream stream = nullptr;
  gpu.check(driver.create_stream(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
  Ring ring(gpu,
            {{gpu.allocate(bytes), bytes / 8},
             allocate_pitched(gpu, bytes),
             allocate_growing(gpu, bytes),
             allocate_from_pool(gpu, bytes, stream),
             {gpu.allocate(65536), 8192}},
            kMiB / 8);
  void* pinned = nullptr;
  gpu.check(driver.host_alloc(&pinned, kPinnedWords * 8, 0), "allocate pinned memory");
  const CUdeviceptr scratch = gpu.allocate(16384);
  gpu.check(driver.set_words_async(scratch, 0, 4096, nullptr), "clear");
  gpu.synchronize();
  const CUgraphExec graph = capture_graph(gpu, ring.buffers()[2], pinned, scratch, stream);
  Pace pace(options.period_ms);
  while (!termination_requested() && (options.steps == 0 || ring.steps() < options.steps)) {
    pace.begin_step();
    ring.step(stream);
    gpu.check(driver.launch_graph(graph, stream), "launch the graph");
    if (ring.steps() % options.report == 0) {
      for (const RingBuffer& buffer : ring.buffers()) expect_on_device(gpu, buffer);
      const std::uint64_t sum = ring.checksum();
      const std::uint64_t replayed = gpu.read_word(scratch + 8192) ^ gpu.read_word(scratch);
      report(ring.steps(),
             sum + replayed + mix(static_cast<const std::uint64_t*>(pinned), kPinnedWords));
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
  gcr::test::CommandLine line("The stencil over every kind of allocation");
  line.add("--mib", options.mib, "MiB of each kind").within(1, 65536);
  line.add("--report", options.report, "steps between two lines").positive();
  line.add("--steps", options.steps, "end after so many steps (0: never)");
  line.add("--period-ms", options.period_ms, "the pace, if the GPU keeps it (0: no pause)")
      .within(0.0, 60000.0);
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

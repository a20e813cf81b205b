// How much VRAM allocations of random sizes use, by the driver's free memory before and after: with
// arenas under the preload library, and as the driver rounds them without it. Prints a line of JSON
// for each range of sizes.
#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <vector>

#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

struct Range {
  std::uint64_t least_kib;
  std::uint64_t most_kib;
};
constexpr Range kRanges[] = {{4, 64}, {64, 1024}, {1024, 2047}, {1331, 2047}, {2048, 16384}};

std::uint64_t free_bytes(const Gpu& gpu) {
  std::size_t free = 0;
  std::size_t total = 0;
  gpu.check(gpu.driver().memory_info(&free, &total), "ask for free memory");
  return free;
}

void take(const Gpu& gpu, const Range& range, std::uint64_t wanted_bytes) {
  std::mt19937_64 random(range.least_kib);
  std::uniform_int_distribution<std::uint64_t> sizes(range.least_kib * kKiB, range.most_kib * kKiB);
  const std::uint64_t before = free_bytes(gpu);
  std::vector<CUdeviceptr> addresses;
  std::uint64_t asked_bytes = 0;
  while (asked_bytes < wanted_bytes) {
    const std::uint64_t size = sizes(random);
    addresses.push_back(gpu.allocate(size));
    asked_bytes += size;
  }
  const std::uint64_t taken_bytes = before - free_bytes(gpu);
  for (const CUdeviceptr address : addresses) {
    gpu.check(gpu.driver().free(address), "free memory");
  }
  fmt::print(
      "{{\"what\": \"room\", \"least_kib\": {}, \"most_kib\": {}, \"allocations\": {}, "
      "\"asked_bytes\": {}, \"taken_bytes\": {}}}\n",
      range.least_kib, range.most_kib, addresses.size(), asked_bytes, taken_bytes);
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  std::uint64_t bytes = std::uint64_t{4} << 30;
  gcr::test::CommandLine line("How much VRAM allocations of random sizes take");
  line.add_size("--vram", bytes, "how much to ask for in each range of sizes");
  line.parse(argc, argv);
  const gcr::apps::Gpu gpu(0);
  for (const gcr::apps::Range& range : gcr::apps::kRanges) gcr::apps::take(gpu, range, bytes);
}

// The time that the driver needs to unmap many allocations and to map them again, as the preload
// library does at a detach and an attach: each step separately, and access also for all adjacent
// ones in one call. Prints microseconds per allocation.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

struct Options {
  std::uint64_t kib = 2048;
  std::uint64_t most = 10000;
};

class Mappings {
 public:
  Mappings(const Gpu& gpu, std::size_t count, std::size_t size_bytes, bool adjacent)
      : gpu_(gpu),
        driver_(gpu.driver()),
        size_bytes_(size_bytes),
        adjacent_(adjacent),
        addresses_(count),
        handles_(count),
        descriptors_(count) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
    access_ = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }

  /// Runs all steps, in the order of a move.
  void run() {
    reserve();
    time("create", [&](std::size_t i) { return create(i); });
    time("map", [&](std::size_t i) { return map(i); });
    allow("access");
    time("export", [&](std::size_t i) {
      return driver_.export_memory(&descriptors_[i], handles_[i],
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    });
    unmap_all("unmap", "release");
    time("import", [&](std::size_t i) {
      const auto descriptor = static_cast<std::intptr_t>(descriptors_[i]);
      return driver_.import_memory(&handles_[i], reinterpret_cast<void*>(descriptor),
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    });
    time("map again", [&](std::size_t i) { return map(i); });
    allow("access again");
    for (const int descriptor : descriptors_) ::close(descriptor);
    unmap_all("unmap again", "release again");
  }

 private:
  using Clock = std::chrono::steady_clock;

  void reserve() {
    const std::size_t count = addresses_.size();
    if (adjacent_) {
      CUdeviceptr start = 0;
      gpu_.check(driver_.reserve(&start, count * size_bytes_, 0, 0, 0), "reserve addresses");
      for (std::size_t i = 0; i < count; ++i) addresses_[i] = start + i * size_bytes_;
      return;
    }
    time("reserve",
         [&](std::size_t i) { return driver_.reserve(&addresses_[i], size_bytes_, 0, 0, 0); });
    std::size_t neighbours = 0;
    for (std::size_t i = 1; i < count; ++i) {
      const CUdeviceptr distance = addresses_[i] > addresses_[i - 1]
                                       ? addresses_[i] - addresses_[i - 1]
                                       : addresses_[i - 1] - addresses_[i];
      if (distance == size_bytes_) ++neighbours;
    }
    fmt::print("  {} of {} reservations are adjacent to the one before\n", neighbours, count);
  }

  CUresult create(std::size_t i) {
    return driver_.create(&handles_[i], size_bytes_, &properties_, 0);
  }
  CUresult map(std::size_t i) { return driver_.map(addresses_[i], size_bytes_, 0, handles_[i], 0); }

  void allow(const char* step) {
    if (adjacent_) {
      time_all(step, [&] {
        return driver_.set_access(addresses_.front(), addresses_.size() * size_bytes_, &access_, 1);
      });
    } else {
      time(step, [&](std::size_t i) {
        return driver_.set_access(addresses_[i], size_bytes_, &access_, 1);
      });
    }
  }

  void unmap_all(const char* unmap_step, const char* release_step) {
    time(unmap_step, [&](std::size_t i) { return driver_.unmap(addresses_[i], size_bytes_); });
    time(release_step, [&](std::size_t i) { return driver_.release(handles_[i]); });
  }

  void time(const char* step, const std::function<CUresult(std::size_t)>& one) {
    time_all(step, [&] {
      for (std::size_t i = 0; i < addresses_.size(); ++i) gpu_.check(one(i), step);
      return CUDA_SUCCESS;
    });
  }

  void time_all(const char* step, const std::function<CUresult()>& all) {
    const auto start = Clock::now();
    gpu_.check(all(), step);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    fmt::print("  {:<14} {:>9.2f} us each {:>9.1f} ms\n", step,
               took.count() / static_cast<double>(addresses_.size()), took.count() / 1000);
  }

  const Gpu& gpu_;
  const Driver& driver_;
  const std::size_t size_bytes_;
  const bool adjacent_;  ///< in one reservation, with access for all in one call
  CUmemAllocationProp properties_{};
  CUmemAccessDesc access_{};
  std::vector<CUdeviceptr> addresses_;
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::vector<int> descriptors_;
};

void run(const Options& options) {
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &descriptors);
  const Gpu gpu(0);
  for (std::uint64_t count = 100; count <= options.most; count *= 10) {
    for (const bool adjacent : {false, true}) {
      fmt::print("{} allocations of {}, {}\n", count, format_bytes(options.kib * kKiB),
                 adjacent ? "in one reservation" : "each in a reservation of its own");
      Mappings(gpu, count, options.kib * kKiB, adjacent).run();
    }
  }
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("What it costs to let go of allocations and to map them again");
  line.add("--kib", options.kib, "size of each, a multiple of 2048").within(2048, 1 << 30);
  line.add("--most", options.most, "how many, in steps of ten from 100 on").within(100, 100000);
  line.parse(argc, argv);
  gcr::apps::run(options);
}

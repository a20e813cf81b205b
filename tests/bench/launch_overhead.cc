// What the preload library costs a kernel launch: cuLaunchKernel through its shim against the
// driver's own, on whatever libcuda.so.1 the loader finds: a real GPU's, the software GPU's, or the
// trivial driver beside this program, whose functions only return, so that the shim's own
// instructions are all there is to see (LD_LIBRARY_PATH chooses).
//
// The program preloads libgcr-preload.so into itself: from GCR_PRELOAD_LIBRARY, or ../lib beside
// it.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/elf_object.h"

namespace gcr::bench {
namespace {

constexpr int kLaunchesPerBatch = 200;  // fits the driver's queue, so that no launch waits

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry gcr_noop() { ret; }
)";

using LaunchKernel = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, CUstream, void**, void**);

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(what) + " failed: " + std::to_string(result));
  }
}

/// An initialised device with an empty kernel, and both ways to launch it.
class Gpu {
 public:
  Gpu() : driver_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (driver_ == nullptr) throw std::runtime_error(dlerror());
    interposed_ = find<LaunchKernel>("cuLaunchKernel");
    direct_ = find_in_driver();
    if (interposed_ == direct_) throw std::runtime_error("the preload library is not in between");
    check(find<CUresult (*)(unsigned)>("cuInit")(0), "cuInit");
    check(find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context_, 0),
          "cuDevicePrimaryCtxRetain");
    check(find<CUresult (*)(CUcontext)>("cuCtxSetCurrent")(context_), "cuCtxSetCurrent");
    CUmodule module = nullptr;
    check(find<CUresult (*)(CUmodule*, const void*)>("cuModuleLoadData")(&module, kPtx),
          "cuModuleLoadData");
    check(find<CUresult (*)(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction")(
              &kernel_, module, "gcr_noop"),
          "cuModuleGetFunction");
    synchronize_ = find<CUresult (*)()>("cuCtxSynchronize");
  }

  LaunchKernel interposed() const { return interposed_; }
  LaunchKernel direct() const { return direct_; }

  /// Nanoseconds per launch over one batch; the GPU is idle before and after.
  double time_batch(LaunchKernel launch) const {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunchesPerBatch; ++i) {
      benchmark::DoNotOptimize(launch(kernel_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    check(synchronize_(), "cuCtxSynchronize");
    return spent.count() / kLaunchesPerBatch;
  }

 private:
  template <class Function>
  Function find(const char* name) const {
    void* const address = dlsym(driver_, name);
    if (address == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function>(address);
  }

  /// Past dlsym, which answers with the shim.
  static LaunchKernel find_in_driver() {
    void* found = nullptr;
    preload::visit_objects([&found](const preload::ElfObject& object, const dl_phdr_info&) {
      if (std::strcmp(object.soname(), "libcuda.so.1") != 0) return false;
      found = object.find_function("cuLaunchKernel");
      return true;
    });
    return reinterpret_cast<LaunchKernel>(found);
  }

  void* driver_;
  LaunchKernel interposed_ = nullptr;
  LaunchKernel direct_ = nullptr;
  CUresult (*synchronize_)() = nullptr;
  CUcontext context_ = nullptr;
  CUfunction kernel_ = nullptr;
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Batches of both ways in turn, in changing order, so that what changes on the machine changes
/// both. Reported: the medians per launch, and the median of the differences between neighbours,
/// which is the figure that counts.
void launch_overhead(benchmark::State& state, const Gpu& gpu) {
  std::vector<double> direct;
  std::vector<double> interposed;
  std::vector<double> difference;
  bool direct_first = true;
  for (auto _ : state) {
    const double first = gpu.time_batch(direct_first ? gpu.direct() : gpu.interposed());
    const double second = gpu.time_batch(direct_first ? gpu.interposed() : gpu.direct());
    direct.push_back(direct_first ? first : second);
    interposed.push_back(direct_first ? second : first);
    difference.push_back(interposed.back() - direct.back());
    direct_first = !direct_first;
  }
  state.counters["direct_ns"] = median(direct);
  state.counters["interposed_ns"] = median(interposed);
  state.counters["overhead_ns"] = median(difference);
}

/// Starts this program again with the library preloaded, unless it is already.
void preload_into_myself(char** arguments) {
  if (std::getenv("LD_PRELOAD") != nullptr) return;
  const char* chosen = std::getenv("GCR_PRELOAD_LIBRARY");
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
                      "lib/libgcr-preload.so";
  setenv("LD_PRELOAD", chosen != nullptr ? chosen : beside.c_str(), 1);
  execv("/proc/self/exe", arguments);
  throw std::runtime_error("cannot start again under " + beside.string());
}

}  // namespace
}  // namespace gcr::bench

int main(int argc, char** argv) {
  try {
    gcr::bench::preload_into_myself(argv);
    benchmark::Initialize(&argc, argv);
    const gcr::bench::Gpu gpu;
    benchmark::RegisterBenchmark(
        "launch_overhead",
        [&gpu](benchmark::State& state) { gcr::bench::launch_overhead(state, gpu); })
        ->MinTime(2.0)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_launch: %s\n", error.what());
    return 1;
  }
}

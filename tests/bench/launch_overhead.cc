// The cost of the preload library per kernel launch, and the time of an allocation of 64 KiB and
// its free, stream-ordered and plain: through its shims compared with the driver's own functions,
// with the libcuda.so.1 that the loader finds: a real GPU's, the software GPU's, or the trivial
// driver in this program's folder, whose functions only return, so that only the shim's own
// instructions are measured (LD_LIBRARY_PATH selects it).
//
// The program preloads libgcr-preload.so into itself: from GCR_PRELOAD_LIBRARY, or from ../lib next
// to its own folder.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/elf_object.h"

namespace gcr::bench {
namespace {

constexpr int kCallsPerBatch = 200;  // fits the driver's queue, so that no launch waits
constexpr std::size_t kAllocationBytes = 64 << 10;

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

/// The measured functions, through one of the two ways to the driver.
struct Calls {
  LaunchKernel launch = nullptr;
  CUresult (*allocate)(CUdeviceptr*, std::size_t) = nullptr;
  CUresult (*free)(CUdeviceptr) = nullptr;
  CUresult (*allocate_async)(CUdeviceptr*, std::size_t, CUstream) = nullptr;
  CUresult (*free_async)(CUdeviceptr, CUstream) = nullptr;

  template <class Find>
  explicit Calls(const Find& find)
      : launch(reinterpret_cast<LaunchKernel>(find("cuLaunchKernel"))),
        allocate(reinterpret_cast<decltype(allocate)>(find("cuMemAlloc_v2"))),
        free(reinterpret_cast<decltype(free)>(find("cuMemFree_v2"))),
        allocate_async(reinterpret_cast<decltype(allocate_async)>(find("cuMemAllocAsync"))),
        free_async(reinterpret_cast<decltype(free_async)>(find("cuMemFreeAsync"))) {}
};

/// An initialised device with an empty kernel, and both ways to the driver.
class Gpu {
 public:
  Gpu() : driver_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (driver_ == nullptr) throw std::runtime_error(dlerror());
    interposed_ = Calls([this](const char* name) { return find<void*>(name); });
    direct_ = Calls(find_in_driver);
    if (interposed_.launch == direct_.launch)
      throw std::runtime_error("the preload library is not in between");
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
    keep_pool();
  }

  const Calls& interposed() const { return interposed_; }
  const Calls& direct() const { return direct_; }

  /// Nanoseconds per `call(calls)` over one batch; the GPU is idle before and after.
  template <class Call>
  double time_batch(const Calls& calls, const Call& call) const {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCallsPerBatch; ++i) benchmark::DoNotOptimize(call(calls));
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    check(synchronize_(), "cuCtxSynchronize");
    return spent.count() / kCallsPerBatch;
  }
  CUfunction kernel() const { return kernel_; }

 private:
  template <class Function>
  Function find(const char* name) const {
    void* const address = dlsym(driver_, name);
    if (address == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function>(address);
  }

  /// Memory of the stream-ordered pool stays in it.
  void keep_pool() const {
    CUmemoryPool pool = nullptr;
    cuuint64_t all = ~cuuint64_t{0};
    check(find<CUresult (*)(CUmemoryPool*, CUdevice)>("cuDeviceGetDefaultMemPool")(&pool, 0),
          "cuDeviceGetDefaultMemPool");
    check(find<CUresult (*)(CUmemoryPool, CUmemPool_attribute, void*)>("cuMemPoolSetAttribute")(
              pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
          "cuMemPoolSetAttribute");
  }

  /// From the driver's file: dlsym and the symbol table in memory return the shim.
  static void* find_in_driver(const char* name) {
    void* found = nullptr;
    preload::visit_objects([&](const preload::ElfObject& object, const dl_phdr_info& info) {
      if (std::strcmp(object.soname(), "libcuda.so.1") != 0) return false;
      if (const ElfW(Sym)* const changed = object.find_symbol(name); changed != nullptr) {
        found = reinterpret_cast<void*>(info.dlpi_addr + on_disk(info, changed).st_value);
      }
      return true;
    });
    return found;
  }

  /// The symbol as the object's file has it.
  static ElfW(Sym) on_disk(const dl_phdr_info& info, const ElfW(Sym) * loaded) {
    const auto address = reinterpret_cast<ElfW(Addr)>(loaded) - info.dlpi_addr;
    const auto* const end = info.dlpi_phdr + info.dlpi_phnum;
    const auto* const segment =
        std::find_if(info.dlpi_phdr, end, [address](const ElfW(Phdr) & header) {
          return header.p_type == PT_LOAD && address - header.p_vaddr < header.p_filesz;
        });
    if (segment == end) throw std::runtime_error("no symbol table in the driver's file");
    std::ifstream file(info.dlpi_name, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(address - segment->p_vaddr + segment->p_offset));
    ElfW(Sym) symbol{};
    if (!file.read(reinterpret_cast<char*>(&symbol), sizeof(symbol)))
      throw std::runtime_error(std::string("cannot read ") + info.dlpi_name);
    return symbol;
  }

  void* driver_;
  Calls interposed_{[](const char*) -> void* { return nullptr; }};
  Calls direct_ = interposed_;
  CUresult (*synchronize_)() = nullptr;
  CUcontext context_ = nullptr;
  CUfunction kernel_ = nullptr;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Batches of both ways alternate, in changing order, so that a change on the machine affects both.
/// Reported: the medians per call, and the median of the differences between neighbours, which is
/// the result.
template <class Call>
void overhead(benchmark::State& state, const Gpu& gpu, const Call& call) {
  std::vector<double> direct;
  std::vector<double> interposed;
  std::vector<double> difference;
  bool direct_first = true;
  for (auto _ : state) {
    const double first = gpu.time_batch(direct_first ? gpu.direct() : gpu.interposed(), call);
    const double second = gpu.time_batch(direct_first ? gpu.interposed() : gpu.direct(), call);
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
  const auto built_library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
      "lib/libgcr-preload.so";
  setenv("LD_PRELOAD", chosen != nullptr ? chosen : built_library.c_str(), 1);
  execv("/proc/self/exe", arguments);
  throw std::runtime_error("cannot start again under " + built_library.string());
}

}  // namespace
}  // namespace gcr::bench

int main(int argc, char** argv) {
  try {
    gcr::bench::preload_into_myself(argv);
    benchmark::Initialize(&argc, argv);
    const gcr::bench::Gpu gpu;
    const auto measure = [&gpu](const char* name, const auto& call) {
      benchmark::RegisterBenchmark(
          name, [&gpu, call](benchmark::State& state) { gcr::bench::overhead(state, gpu, call); })
          ->MinTime(1.0)
          ->Unit(benchmark::kMicrosecond);
    };
    using gcr::bench::Calls;
    measure("launch", [&gpu](const Calls& calls) {
      return calls.launch(gpu.kernel(), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    });
    measure("alloc_async", [](const Calls& calls) {
      CUdeviceptr address = 0;
      calls.allocate_async(&address, gcr::bench::kAllocationBytes, nullptr);
      return calls.free_async(address, nullptr);
    });
    measure("alloc", [](const Calls& calls) {
      CUdeviceptr address = 0;
      calls.allocate(&address, gcr::bench::kAllocationBytes);
      return calls.free(address);
    });
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_launch: %s\n", error.what());
    return 1;
  }
}

// NVML for the software GPU: what programs ask that count GPUs. As NVIDIA's (580.159) it loads the
// driver, whose checkpoint then takes care of the process; in a forked child it is not initialised.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/softgpu/cuda/export_tables.h"

#define SOFTNVML_API extern "C" __attribute__((visibility("default"))) int

namespace gcr::softgpu {
namespace {

// nvmlReturn_t
enum { kSuccess = 0, kUninitialized = 1, kInvalidArgument = 2, kNoDriver = 9, kUnknown = 999 };

const NvmlTable* g_table = nullptr;
std::atomic<int> g_owner{0};  ///< the process that has initialised it
std::atomic<int> g_times{0};

bool is_initialised() { return g_owner == ::getpid() && g_times > 0; }

int initialise() {
  if (g_owner.exchange(::getpid()) != ::getpid()) g_times = 0;
  if (g_table == nullptr) {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    using Get = CUresult (*)(const void**, const CUuuid*);
    const auto get =
        driver == nullptr ? nullptr : reinterpret_cast<Get>(::dlsym(driver, "cuGetExportTable"));
    const void* table = nullptr;
    if (get == nullptr || get(&table, &kNvmlTable) != CUDA_SUCCESS) return kNoDriver;
    g_table = static_cast<const NvmlTable*>(table);
  }
  if (g_table->attend() != CUDA_SUCCESS) return kUnknown;
  ++g_times;
  return kSuccess;
}

/// A handle is the index and one, as a pointer.
int index_of(const void* handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1;
}

}  // namespace

SOFTNVML_API nvmlInit() { return initialise(); }
SOFTNVML_API nvmlInit_v2() { return initialise(); }
SOFTNVML_API nvmlInitWithFlags(unsigned int) { return initialise(); }

SOFTNVML_API nvmlShutdown() {
  if (!is_initialised()) return kUninitialized;
  --g_times;
  return kSuccess;
}

SOFTNVML_API nvmlDeviceGetCount_v2(unsigned int* count) {
  if (!is_initialised()) return kUninitialized;
  *count = static_cast<unsigned int>(g_table->count());
  return kSuccess;
}

SOFTNVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** handle) {
  if (!is_initialised()) return kUninitialized;
  if (index >= static_cast<unsigned int>(g_table->count())) return kInvalidArgument;
  *handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(index) + 1);
  return kSuccess;
}

SOFTNVML_API nvmlDeviceGetUUID(const void* handle, char* text, unsigned int length) {
  if (!is_initialised()) return kUninitialized;
  std::array<std::uint8_t, 16> bytes{};
  if (!g_table->uuid(index_of(handle), bytes.data())) return kInvalidArgument;
  std::string uuid = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    uuid += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
  }
  if (length <= uuid.size()) return kInvalidArgument;
  std::memcpy(text, uuid.c_str(), uuid.size() + 1);
  return kSuccess;
}

}  // namespace gcr::softgpu

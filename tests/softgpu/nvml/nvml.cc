// NVML for the software GPU: the functions of programs that count GPUs, or list the users of one.
// As NVIDIA's (580.159) it loads the driver, whose checkpoint then covers the process; in a forked
// child it is not initialised.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/softgpu/cuda/export_tables.h"

#define SOFTNVML_API extern "C" __attribute__((visibility("default"))) int

namespace gcr::softgpu {
namespace {

// nvmlReturn_t
enum {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotFound = 6,
  kInsufficientSize = 7,
  kNoDriver = 9,
  kUnknown = 999
};

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

/// A handle is the index plus one, as a pointer.
int index_of(const void* handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1;
}

/// "GPU-01234567-…", or "" if there is no such GPU.
std::string name_of(int index) {
  std::array<std::uint8_t, 16> bytes{};
  if (!g_table->uuid(index, bytes.data())) return {};
  std::string name = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    name += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
  }
  return name;
}

/// nvmlProcessInfo_t
struct ComputeProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

/// How much of a GPU's memory the process has mapped: its folder has the GPU's name.
std::uint64_t mapped_by(const std::string& pid, const std::string& folder) {
  std::ifstream maps("/proc/" + pid + "/maps");
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/" + folder + "/") == std::string::npos) continue;
    const std::size_t dash = line.find('-');
    bytes += std::stoull(line.substr(dash + 1), nullptr, 16) -
             std::stoull(line.substr(0, dash), nullptr, 16);
  }
  return bytes;
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

SOFTNVML_API nvmlDeviceGetHandleByUUID(const char* name, void** handle) {
  if (!is_initialised()) return kUninitialized;
  for (int index = 0; index < g_table->count(); ++index) {
    if (name_of(index) != name) continue;
    return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned int>(index), handle);
  }
  return kNotFound;
}

SOFTNVML_API nvmlDeviceGetComputeRunningProcesses_v3(const void* handle, unsigned int* count,
                                                     ComputeProcess* processes) {
  if (!is_initialised()) return kUninitialized;
  const unsigned int room = *count;
  *count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::uint64_t bytes = mapped_by(pid, name_of(index_of(handle)).substr(4));
    if (bytes == 0) continue;
    if (*count < room)
      processes[*count] = {static_cast<unsigned>(std::stoul(pid)), bytes, ~0U, ~0U};
    ++*count;
  }
  return *count <= room ? kSuccess : kInsufficientSize;
}

SOFTNVML_API nvmlDeviceGetUUID(const void* handle, char* text, unsigned int length) {
  if (!is_initialised()) return kUninitialized;
  const std::string name = name_of(index_of(handle));
  if (name.empty() || length <= name.size()) return kInvalidArgument;
  std::memcpy(text, name.c_str(), name.size() + 1);
  return kSuccess;
}

}  // namespace gcr::softgpu

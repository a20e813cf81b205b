#include "migrate-agent/preflight/inventory/nvml.h"

#include <string>
#include <vector>

namespace gcr::inventory {
namespace {

// Declarations from NVIDIA's "NVML API Reference": the return type, nvmlMemory_t in both versions,
// and nvmlProcessInfo_t of version 3.
using NvmlReturn = int;
constexpr NvmlReturn kSuccess = 0;
constexpr NvmlReturn kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;

struct NvmlMemory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};

struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total_bytes;
  unsigned long long reserved_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};
constexpr unsigned kMemoryV2 = sizeof(NvmlMemoryV2) | (2U << 24);

struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

/// Upper bound on the processes of one GPU; their number may grow between two calls.
constexpr unsigned kMostProcesses = 4096;

}  // namespace

std::optional<Nvml> Nvml::load() {
  auto library = device::LoadedLibrary::load("libnvidia-ml.so.1", "NVML");
  if (!library) return std::nullopt;
  auto* const init = library->find<NvmlReturn()>("nvmlInit_v2");
  if (init == nullptr || init() != kSuccess) return std::nullopt;
  return Nvml(std::move(*library));
}

Nvml::~Nvml() {
  if (!library_) return;
  if (auto* shutdown = library_.find<NvmlReturn()>("nvmlShutdown")) shutdown();
}

/// Returns NVML's handle of a GPU; null if the library does not know it.
void* Nvml::device_of(const Uuid& gpu) const {
  auto* handle_of = library_.find<NvmlReturn(const char*, void**)>("nvmlDeviceGetHandleByUUID");
  void* device = nullptr;
  const std::string name = gpu_name(gpu);
  if (handle_of == nullptr || handle_of(name.c_str(), &device) != kSuccess) return nullptr;
  return device;
}

std::optional<std::uint64_t> Nvml::free_bytes(const Uuid& gpu) const {
  auto* memory_of = library_.find<NvmlReturn(void*, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  void* const device = device_of(gpu);
  NvmlMemory memory{};
  if (memory_of == nullptr || device == nullptr) return std::nullopt;
  if (memory_of(device, &memory) != kSuccess) return std::nullopt;
  return memory.free_bytes;
}

std::optional<std::uint64_t> Nvml::used_bytes(const Uuid& gpu) const {
  auto* memory_of = library_.find<NvmlReturn(void*, NvmlMemoryV2*)>("nvmlDeviceGetMemoryInfo_v2");
  void* const device = device_of(gpu);
  NvmlMemoryV2 memory{};
  memory.version = kMemoryV2;
  if (memory_of == nullptr || device == nullptr) return std::nullopt;
  if (memory_of(device, &memory) != kSuccess) return std::nullopt;
  return memory.used_bytes;
}

std::optional<std::map<pid_t, std::uint64_t>> Nvml::used_by_process(const Uuid& gpu) const {
  auto* list = library_.find<NvmlReturn(void*, unsigned*, NvmlProcess*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  void* const device = device_of(gpu);
  if (list == nullptr || device == nullptr) return std::nullopt;
  std::vector<NvmlProcess> processes(8);
  unsigned count = 0;
  NvmlReturn answer = kInsufficientSize;
  while (answer == kInsufficientSize && processes.size() < kMostProcesses) {
    processes.resize(2 * processes.size());
    count = static_cast<unsigned>(processes.size());
    answer = list(device, &count, processes.data());
  }
  if (answer != kSuccess || count > processes.size()) return std::nullopt;
  processes.resize(count);
  std::map<pid_t, std::uint64_t> used;
  for (const NvmlProcess& process : processes) {
    if (process.used_bytes == kNotAvailable) return std::nullopt;
    used[static_cast<pid_t>(process.pid)] += process.used_bytes;
  }
  return used;
}

}  // namespace gcr::inventory

#include "migrate-agent/host/nvml.h"

#include <dlfcn.h>

#include <string>
#include <utility>

namespace gcr::host {
namespace {

// NVIDIA's "NVML API Reference": the return type, and nvmlMemory_t.
using NvmlReturn = int;
constexpr NvmlReturn kSuccess = 0;

struct NvmlMemory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};

}  // namespace

template <class Function>
Function* Nvml::find(const char* name) const {
  return reinterpret_cast<Function*>(::dlsym(library_, name));
}

std::optional<Nvml> Nvml::load() {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  auto* init = reinterpret_cast<NvmlReturn (*)()>(::dlsym(library, "nvmlInit_v2"));
  if (init == nullptr || init() != kSuccess) {
    ::dlclose(library);
    return std::nullopt;
  }
  return Nvml(library);
}

Nvml::Nvml(Nvml&& other) noexcept : library_(std::exchange(other.library_, nullptr)) {}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (auto* shutdown = find<NvmlReturn()>("nvmlShutdown")) shutdown();
  ::dlclose(library_);
}

std::optional<std::uint64_t> Nvml::free_bytes(const Uuid& gpu) const {
  auto* handle_of = find<NvmlReturn(const char*, void**)>("nvmlDeviceGetHandleByUUID");
  auto* memory_of = find<NvmlReturn(void*, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  if (handle_of == nullptr || memory_of == nullptr) return std::nullopt;
  void* device = nullptr;
  NvmlMemory memory{};
  const std::string name = "GPU-" + gpu.to_string();
  if (handle_of(name.c_str(), &device) != kSuccess) return std::nullopt;
  if (memory_of(device, &memory) != kSuccess) return std::nullopt;
  return memory.free_bytes;
}

}  // namespace gcr::host

// Memory of the application that it registers with the driver. A device writes to it without a
// fault, so an agent that asks the kernel what was written has to know of it.
#include <cstdint>

#include "preload/cuda/driver_calls.h"
#include "preload/cuda/process_state.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

/// Whether it is new.
bool note_registered(const void* at, std::size_t size_bytes) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const auto [entry, is_new] =
      s.registered_memory.try_emplace(reinterpret_cast<std::uintptr_t>(at), size_bytes);
  if (entry->second < size_bytes) entry->second = size_bytes;
  return is_new;
}

void forget_registered(const void* at) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.registered_memory.erase(reinterpret_cast<std::uintptr_t>(at));
}

using Register = CUresult (*)(void*, std::size_t, unsigned int);

CUresult register_with(Register driver, void* at, std::size_t size_bytes, unsigned int flags) {
  const bool is_new = note_registered(at, size_bytes);
  const CUresult result = driver(at, size_bytes, flags);
  if (is_new && result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    forget_registered(at);
  }
  return result;
}

}  // namespace

namespace tracked {

CUresult cuMemHostRegister(void* at, std::size_t size_bytes, unsigned int flags) {
  return register_with(real::cuMemHostRegister, at, size_bytes, flags);
}

CUresult cuMemHostRegister_v2(void* at, std::size_t size_bytes, unsigned int flags) {
  return register_with(real::cuMemHostRegister_v2, at, size_bytes, flags);
}

CUresult cuMemHostUnregister(void* at) {
  const CUresult result = real::cuMemHostUnregister(at);
  if (result == CUDA_SUCCESS) forget_registered(at);
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload

// NVIDIA's management library, which tells how much VRAM is free without a context: a context takes
// 260 ms and 530 MiB of that VRAM.
#pragma once

#include <cstdint>
#include <optional>

#include "src/base/uuid.h"

namespace gcr::host {

/// libnvidia-ml.so.1, initialised. It comes with the driver, though not into every container.
class Nvml {
 public:
  /// Nothing if this host has no such library, or it finds no driver.
  static std::optional<Nvml> load();

  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  /// Nothing if the library does not know the GPU (a MIG slice, the software GPU).
  std::optional<std::uint64_t> free_bytes(const Uuid& gpu) const;

 private:
  explicit Nvml(void* library) : library_(library) {}
  template <class Function>
  Function* find(const char* name) const;

  void* library_;
};

}  // namespace gcr::host

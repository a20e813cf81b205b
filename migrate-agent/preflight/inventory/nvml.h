// NVIDIA's management library, which tells how much VRAM is free, and who uses it, without a
// context: a context takes 260 ms and 530 MiB of that VRAM.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>

#include "migrate-agent/gpu/device/loaded_library.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// libnvidia-ml.so.1, initialised. It comes with the driver, though not into every container.
class Nvml {
 public:
  /// Nothing if this host has no such library, or it finds no driver.
  static std::optional<Nvml> load();

  Nvml(Nvml&&) noexcept = default;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  /// Nothing if the library does not know the GPU (a MIG slice, the software GPU).
  std::optional<std::uint64_t> free_bytes(const Uuid& gpu) const;

  /// Used by whomever, without what the driver keeps for itself. Nothing as for free_bytes().
  std::optional<std::uint64_t> used_bytes(const Uuid& gpu) const;

  /// VRAM on the GPU by process, its contexts included. Nothing as for free_bytes(), or if the
  /// library cannot tell all of it. PIDs are those of the host's first PID namespace.
  std::optional<std::map<pid_t, std::uint64_t>> used_by_process(const Uuid& gpu) const;

 private:
  explicit Nvml(device::LoadedLibrary library) : library_(std::move(library)) {}
  void* device_of(const Uuid& gpu) const;

  device::LoadedLibrary library_;
};

}  // namespace gcr::inventory

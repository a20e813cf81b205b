// NVML, NVIDIA's management library: reads how much VRAM is free, and who uses it, without a
// context, which would take 260 ms and 530 MiB of VRAM.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>

#include "migrate-agent/gpu/device/loaded_library.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// libnvidia-ml.so.1, initialised. It comes with the driver, but not into every container.
class Nvml {
 public:
  /// Loads the library; none if this host does not have it or it finds no driver.
  static std::optional<Nvml> load();

  Nvml(Nvml&&) noexcept = default;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  /// Returns the free VRAM; none if the library does not know the GPU (a MIG slice, the software
  /// GPU).
  std::optional<std::uint64_t> free_bytes(const Uuid& gpu) const;

  /// Returns the VRAM that all processes use, without the driver's own. None like free_bytes().
  std::optional<std::uint64_t> used_bytes(const Uuid& gpu) const;

  /// Returns the VRAM on the GPU by process, including contexts. None like free_bytes(), or if the
  /// library does not know the amount of every process. PIDs are those of the host's first PID
  /// namespace.
  std::optional<std::map<pid_t, std::uint64_t>> used_by_process(const Uuid& gpu) const;

 private:
  explicit Nvml(device::LoadedLibrary library) : library_(std::move(library)) {}
  void* device_of(const Uuid& gpu) const;

  device::LoadedLibrary library_;
};

}  // namespace gcr::inventory

// Reads by the cheapest method that the host offers how much VRAM is free, and estimates what a
// process uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/device/hip/topology.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// Queries NVML, sysfs for AMD GPUs, and for other GPUs the driver, in a context that lives as long
/// as this object. One thread at a time; blocks.
class FreeVram {
 public:
  /// `sysfs` is the mount point of sysfs.
  FreeVram(std::shared_ptr<const device::Driver> driver, std::filesystem::path sysfs);

  /// Returns the free bytes now. kNotFound if the host has no such GPU; kResourceExhausted, or the
  /// driver's error, if a context is needed and cannot be created.
  Result<std::uint64_t> of(const Uuid& gpu);

 private:
  std::optional<std::uint64_t> without_context(const Uuid& gpu) const;

  std::optional<Nvml> nvml_;
  device::Gpus gpus_;
  const std::filesystem::path sysfs_;
  device::hip::Topology topology_;
};

/// Returns an upper bound in bytes for each NVIDIA GPU on which the process may have VRAM. If NVML
/// does not list the process, that is the VRAM that all processes use. Errors like FreeVram.
/// Blocks.
Result<std::map<Uuid, std::uint64_t>> used_vram(
    pid_t pid, const std::shared_ptr<const device::Driver>& driver);

}  // namespace gcr::inventory

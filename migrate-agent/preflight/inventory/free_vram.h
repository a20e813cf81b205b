// How much VRAM is free, by the cheapest method that the host offers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/device/hip/topology.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// Asks the management library, for AMD's GPUs sysfs, and for a GPU that these do not know the
/// driver, in a context that is kept as long as this object. One thread at a time; blocks.
class FreeVram {
 public:
  /// `sysfs` is where it is mounted.
  FreeVram(std::shared_ptr<const device::Driver> driver, std::filesystem::path sysfs);

  /// Now, in bytes. kNotFound if the host has no such GPU; kResourceExhausted, or what the driver
  /// says, if a context was needed and cannot be made.
  Result<std::uint64_t> of(const Uuid& gpu);

 private:
  std::optional<std::uint64_t> without_context(const Uuid& gpu) const;

  std::optional<Nvml> nvml_;
  device::Gpus gpus_;
  const std::filesystem::path sysfs_;
  device::hip::Topology topology_;
};

}  // namespace gcr::inventory

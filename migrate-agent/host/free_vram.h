// How much VRAM is free, by the cheapest method that the host offers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "migrate-agent/device/device.h"
#include "migrate-agent/host/nvml.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::host {

/// Asks the management library and, for a GPU that it does not know, the driver, in a context that
/// is kept as long as this object. One thread at a time; blocks.
class FreeVram {
 public:
  explicit FreeVram(std::shared_ptr<const device::Driver> driver);

  /// Now, in bytes. kNotFound if the host has no such GPU; kResourceExhausted, or what the driver
  /// says, if a context was needed and cannot be made.
  Result<std::uint64_t> of(const Uuid& gpu);

 private:
  std::optional<Nvml> nvml_;
  device::Gpus gpus_;
};

}  // namespace gcr::host

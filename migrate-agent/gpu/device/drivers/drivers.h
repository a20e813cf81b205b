// The GPUs of a host, of all vendors. A host may have NVIDIA and AMD GPUs, and a process may use
// both.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/device/device.h"

namespace gcr::device {

using LoadedDriver = Result<std::shared_ptr<const Driver>>;

/// The drivers that this host has, for NVIDIA GPUs, AMD GPUs, or both as one. HIP is not loaded
/// where the kernel's sysfs, mounted at `sysfs`, has no AMD GPUs: loading it takes longer than all
/// other work of an agent at its start. Blocks.
LoadedDriver load_drivers(const std::filesystem::path& sysfs);

/// Joins the drivers that could be loaded into one that has the GPUs of all, in this order. The
/// control of a process acts on all drivers that it uses; a pair of GPUs goes to the driver that
/// has the second. A driver that exists and does not work is a line in the log. If none could be
/// loaded, the error has each one's reason; kNotFound: the host has none.
LoadedDriver join_drivers(std::vector<LoadedDriver> loaded);

}  // namespace gcr::device

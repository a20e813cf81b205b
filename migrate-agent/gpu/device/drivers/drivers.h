// The GPUs of a host, whoever makes them. A host may have NVIDIA's and AMD's, and a process may use
// both.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/device/device.h"

namespace gcr::device {

using LoadedDriver = Result<std::shared_ptr<const Driver>>;

/// What this host has: the driver of NVIDIA's GPUs, that of AMD's, or both as one. HIP is left
/// alone where the kernel's sysfs, which is mounted at `sysfs`, knows nothing of AMD's GPUs: to
/// load it takes longer than all that an agent does at its start. Blocks.
LoadedDriver load_drivers(const std::filesystem::path& sysfs);

/// Those that could be loaded as one, whose GPUs are those of all, in this order. The control of a
/// process is that of all drivers that it uses, and a pair of GPUs goes to the driver that has the
/// second. A driver that is there and does not work is a line in the log. If there is none, the
/// error says why of each; kNotFound: the host has none.
LoadedDriver join_drivers(std::vector<LoadedDriver> loaded);

}  // namespace gcr::device

// What a process maps, and whether other processes share the memory.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "migrate-agent/process/inspect/inspect.h"

namespace gcr::process {

/// Adds findings: "shared-memory", "deleted-file", "device", "kernel-object"; under_preload.
void inspect_mappings(pid_t pid, const Together& together, Inspection& inspection);

/// Says which file of the GPU driver it has mapped or open, for an error message; nothing if none.
std::optional<std::string> driver_file_in_use(pid_t pid);

/// Whether the preload library is mapped in it.
bool is_under_preload(pid_t pid);

/// Whether it has a file of the driver's unified memory mapped or open, as every process with a
/// CUDA context has, and those that only manage GPUs have not.
bool has_cuda_context(pid_t pid);

/// How many descriptors of the NVIDIA control device a process has beyond one for CUDA and one for
/// each other library of the driver that it has loaded. GPU memory that it holds as a descriptor is
/// one more, and so is a pool that was exported or imported (measured: driver 580.159).
std::size_t unexplained_descriptors(pid_t pid, std::string_view device = "/dev/nvidiactl");

/// Whether a file belongs to a GPU's driver, by its name in the kernel. NVIDIA's (/dev/nvidia*) are
/// gone after the driver's checkpoint, so CRIU never sees them; AMD's (/dev/kfd and render nodes)
/// are what CRIU's plugin dumps.
bool is_driver_file(std::string_view path);

}  // namespace gcr::process

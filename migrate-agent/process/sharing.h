// What a process maps, and whether others have the same memory.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "migrate-agent/process/inspect.h"

namespace gcr::process {

/// Adds findings: "shared-memory", "deleted-file", "device", "kernel-object"; under_preload.
void inspect_mappings(pid_t pid, Inspection& inspection);

/// What belongs to the GPU driver, by its name as the kernel gives it: whatever lies under
/// /dev/nvidia*. The driver's checkpoint takes it out of the process, so that CRIU never sees it.
bool is_driver_file(std::string_view path);

}  // namespace gcr::process

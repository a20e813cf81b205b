// What a process maps, and whether others have the same memory.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "migrate-agent/process/inspect.h"

namespace gcr::process {

/// Adds findings: "shared-memory", "deleted-file", "device", "kernel-object"; under_preload.
void inspect_mappings(pid_t pid, Inspection& inspection);

/// The VRAM of a software GPU: files of a tmpfs that was mounted under that name. The driver's
/// checkpoint takes them out of the process, as it does with /dev/nvidia*.
bool is_software_vram(dev_t device);

}  // namespace gcr::process

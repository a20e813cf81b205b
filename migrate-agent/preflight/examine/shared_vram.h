// Finds processes outside a job that share its VRAM.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/lister.h"

namespace gcr::preflight {

/// Returns a sentence for each process outside `members`, except this one and its children, that
/// has a descriptor of memory that the job shares. The preload library keeps a descriptor of memory
/// that a process imported. Reads /proc only if anything is shared.
std::vector<std::string> find_sharers(const gpu::SameMemory& shared,
                                      const std::vector<pid_t>& members);

}  // namespace gcr::preflight

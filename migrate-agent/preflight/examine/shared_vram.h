// What of a job's VRAM processes outside the job have, or may have.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/same_memory.h"

namespace gcr::preflight {

/// One sentence per process outside `members`, this one and its children left out, that has a
/// descriptor of memory that the job shares. The preload library keeps a descriptor of what a
/// process imported. Reads /proc only if anything is shared.
std::vector<std::string> find_sharers(const gpu::SameMemory& shared,
                                      const std::vector<pid_t>& members);

}  // namespace gcr::preflight

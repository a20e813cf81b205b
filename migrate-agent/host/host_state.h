// What a host has and what runs on it, for planning migrations. Reads only: no process is delayed,
// and VRAM is used only during the call. Blocks.
#pragma once

#include <sys/types.h>

#include <vector>

#include "migrate-agent/config/config.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::host {

/// Kernel, driver, memory and GPUs with their free VRAM. Without the facts about CRIU, the CPU's
/// features and the clock that only a migration needs. kUnsupported if there is no driver.
Result<proto::HostFacts> offer(const agent::Config& config);

struct FoundProcess {
  proto::GpuProcess process;  ///< without migration_id
  /// Its door is in use, by a migration or another query, or a migration has its VRAM.
  bool in_use = false;
};

/// The processes of this host that run under the preload library and have initialised CUDA, by PID.
/// One that has VRAM is of this host if some of it is on one of `gpus`; one that has none, or does
/// not answer (it is in use, or it is stopped) and is told without GPUs, if it is in our
/// network namespace.
std::vector<FoundProcess> processes(const std::vector<proto::Gpu>& gpus);

/// Runnable threads per core, over the last minute.
double load_per_core();

}  // namespace gcr::host

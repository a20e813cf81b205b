// What a host has and what runs on it, for planning migrations. Reads only: no process is delayed,
// and VRAM is used only during the call. Blocks.
#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

#include "migrate-agent/worker/config/config.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::inventory {

/// Kernel, driver, memory and GPUs with their free VRAM. Without the facts about CRIU, the CPU's
/// features and the clock that only a migration needs. kUnsupported if there is no driver.
Result<proto::HostFacts> offer(const worker::Config& config);

struct FoundProcess {
  proto::GpuProcess process;  ///< without migration_id and job
  /// Its door is in use, by a migration or another query, or a migration has its VRAM.
  bool in_use = false;
  bool has_told = false;      ///< its GPUs
  std::set<pid_t> lineage{};  ///< itself and its ancestors, once jobs() knows them
};

/// The processes of this host that run under the preload library and have initialised CUDA or HIP,
/// by PID.
/// One that has VRAM is of this host if some of it is on one of `gpus`; one that has none, or does
/// not answer (it is in use, or it is stopped) and is told without GPUs, if it is in our
/// network namespace.
std::vector<FoundProcess> processes(const std::vector<proto::Gpu>& gpus);

struct FoundJob {
  proto::HostJob job;       ///< without migration_id
  std::set<pid_t> members;  ///< its root and all below it
  std::set<uid_t> owners;   ///< of its members
};

/// The jobs that `processes` belong to, by the PIDs of their roots; sets the job and the lineage of
/// each process. Without processes that have ended meanwhile, and jobs of such processes alone.
///
/// The root of a process's job is the topmost of its ancestors that is under the preload library,
/// or the process itself. The search ends below the first ancestor that has a controlling terminal,
/// or is in another mount, PID or time namespace: with neither could it move.
std::vector<FoundJob> jobs(std::vector<FoundProcess>& processes);

/// Runnable threads per core, over the last minute.
double load_per_core();

}  // namespace gcr::inventory

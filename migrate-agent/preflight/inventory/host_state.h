// Lists a host's resources and the GPU processes and jobs on it, for planning migrations. Reads
// only: no process is delayed, and VRAM is used only during the call. Blocks.
//
// offer() describes the host. processes() finds the GPU processes: it asks each door in /proc for
// its VRAM, with a limit of 250 ms per process and 3 s in all. jobs() groups them into jobs.
#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

#include "migrate-agent/worker/config/config.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::inventory {

/// Returns kernel, driver, memory and GPUs with their free VRAM, without the facts about CRIU, CPU
/// features and the clock, which only a migration needs. kUnsupported if there is no driver.
Result<proto::HostFacts> offer(const worker::Config& config);

/// A GPU process of this host.
struct FoundProcess {
  proto::GpuProcess process;  ///< without migration_id and job
  /// its door is used by a migration or another query, or a migration holds its VRAM
  bool in_use = false;
  bool has_reported = false;  ///< its door reported its GPUs
  std::set<pid_t> lineage{};  ///< the process and its ancestors, once jobs() has set it
};

/// Returns the processes of this host that run under the preload library and have initialised CUDA
/// or HIP, by PID. A process with VRAM belongs to this host if it uses one of `gpus`. A process
/// without VRAM, or that does not reply because it is in use or stopped, belongs to it if it is in
/// the agent's network namespace; it is listed without GPUs.
std::vector<FoundProcess> processes(const std::vector<proto::Gpu>& gpus);

/// A job of this host.
struct FoundJob {
  proto::HostJob job;       ///< without migration_id
  std::set<pid_t> members;  ///< its root and all descendants
  std::set<uid_t> owners;   ///< of its members
};

/// Returns the jobs of `processes`, by the PIDs of their roots, and sets the job and lineage of
/// each process. Omits processes that have ended meanwhile, and jobs that consist only of such
/// processes.
///
/// The root of a process's job is the topmost of its ancestors that is under the preload library,
/// or the supervisor of its container, or the process itself; its members are the root and all
/// processes below it. The search ends below the first ancestor that has a controlling terminal or
/// is in another mount, PID or time namespace: such an ancestor cannot move with the job.
std::vector<FoundJob> jobs(std::vector<FoundProcess>& processes);

/// Returns the number of runnable threads per core, averaged over the last minute.
double load_per_core();

}  // namespace gcr::inventory

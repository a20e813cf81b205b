// Examines a job at the source before anything is changed: its processes, their resources, the
// host, and everything that prevents moving them.
//
// examine() gathers the facts in this order: the host, each process (root first), images and
// plugins, doors and VRAM of the GPU users, and at last the job's VRAM as a whole. It does not stop
// at the first problem: each becomes a finding, and later steps work with the facts so far. Only a
// job whose root cannot be examined, or with too many processes, ends the examination early.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/allocations/lister.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "migrate-agent/process/layer/tree.h"
#include "migrate-agent/process/memory_files/outgoing.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// A living process of the job.
struct Member {
  pid_t pid;
  proto::ProcessFacts facts;
  process::Confinement confinement;
  std::unique_ptr<gpu::GpuAccess> access{};  ///< null: it uses no GPU
};

/// A member that moves through the driver alone.
struct DriverAlone {
  pid_t pid = 0;
  /// upper bounds in bytes; the driver copies it to ordinary memory
  std::map<Uuid, std::uint64_t> vram;
  std::chrono::milliseconds downtime{};  ///< expected, approximately

  std::uint64_t vram_bytes() const;
};

/// Everything that is known of a job and its host.
struct Examination {
  Survey host;
  std::vector<Member> members;                      ///< the root first
  gpu::Job job;                                     ///< the members with all their allocations
  gpu::Lister lister;                               ///< the lister that listed them
  std::optional<DriverAlone> driver_alone;          ///< the GPU user without the preload library
  std::shared_ptr<const criu::Plugin> criu_plugin;  ///< null: no member needs one
  memory_files::FileFacts memory_files;
  bool suspended = false;
  std::optional<procfs::Container> container;  ///< that the job is in
  layer::Trees carried;                        ///< its files that move with the job
  std::optional<proto::Network> network;       ///< its addresses that move with the job
  findings::Findings findings{findings::Side::kSource};

  std::vector<pid_t> pids() const;
};

/// Facts about a suspended job that cannot be read while it is suspended; recorded at the suspend.
struct SuspendedJob {
  Uuid suspension;                                      ///< the migration that suspended it
  gpu::Job job;                                         ///< of the living members
  proto::GroupLimits limits;                            ///< of their control groups
  google::protobuf::RepeatedPtrField<proto::Gpu> gpus;  ///< of the host where it was suspended
  struct Threads {
    pid_t door = 0;
    pid_t cuda_restore = 0;
  };
  std::map<pid_t, Threads> gpu_members;  ///< by PIDs in their namespaces
};

/// kInvalidArgument if the request accepts a finding that cannot be accepted.
Status check_accepted(const proto::MigrateRequest& request);

/// Examines the processes `pids`, the first of which the operator named, and this host for
/// `request`. Everything that is missing is a finding. Without blockers there is a GPU user and a
/// driver. The processes are not disturbed, except that with a kernel that has Landlock, threads
/// that may be in a domain stop for some microseconds. Processes other than the first may end
/// meanwhile. A `suspended` job is not queried: its members have no access. Blocks.
Examination examine(const proto::MigrateRequest& request, const worker::Config& config,
                    const std::vector<pid_t>& pids, const SuspendedJob* suspended = nullptr);

/// Examines a process that was created after the examination; `limits` are the root's. Returns its
/// confinement; kNotFound if it has ended, kRefused if it has blockers.
Result<process::Confinement> examine_late(const proto::MigrateRequest& request, pid_t pid,
                                          const std::vector<pid_t>& pids,
                                          const proto::GroupLimits& limits);

/// Examines a stopped process again. kRefused if it may no longer be moved; success also if it has
/// ended.
Status examine_again(pid_t pid, const process::Confinement& before);

/// Returns how TCP connections with one end outside of the job are treated.
process::OutsideTcp outside_tcp(const proto::MigrateRequest& request);

/// Builds the request to the destination for a job without blockers, without the migration's id and
/// the operator's name.
proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const worker::Config& config);

/// Adds findings for the state that a door reports.
void check_access(const gpu::AccessState& state, findings::Findings& findings);

/// Adds "too-many-buffers".
void check_inventory(std::size_t allocations, findings::Findings& findings);

/// Checks that the size of every allocation is known. kRefused if one is unknown to all members:
/// its creators have released it, and its importers have not mapped it.
Status check_sizes(const gpu::Job& job);

/// Returns a sentence for each process outside `members`, except this one and its children, that
/// has a descriptor of memory that the job shares. The preload library keeps a descriptor of memory
/// that a process imported. Reads /proc only if anything is shared.
std::vector<std::string> find_sharers(const gpu::SameMemory& shared,
                                      const std::vector<pid_t>& members);

/// Estimates the downtime of a job with this much VRAM that the driver moves and this much other
/// memory. `link_bytes_per_s` 0: unknown.
std::chrono::milliseconds slow_downtime(std::uint64_t vram_bytes, std::uint64_t memory_bytes,
                                        std::uint64_t link_bytes_per_s);

/// Adds "unseen-memory" for processes that share memory with the member or may, as far as can be
/// seen from outside: shared memory makes the driver's restore fail after a checkpoint that
/// succeeded. `members`: all of the job; `shared`: the memory that members under the library share.
/// Queries other processes' doors. Blocks.
void check_unseen_memory(const std::vector<pid_t>& members, const gpu::SameMemory& shared,
                         findings::Findings& findings);

/// Adds "no-library" or "no-library-slow", and "downtime-limit".
void check_slow_downtime(const DriverAlone& member, const proto::MigrateRequest& request,
                         findings::Findings& findings);

}  // namespace gcr::preflight

// How the source examines a job before anything is touched: what its processes are, what they hold,
// what the host has, and everything that prevents moving them.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/allocations/lister.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/preflight/examine/driver_alone.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/outside_tcp.h"
#include "migrate-agent/process/memory_files/outgoing.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// A member that uses GPUs.
struct GpuUser {
  std::size_t member;  ///< its place among the members
  std::unique_ptr<gpu::GpuAccess> access;
};

struct Examination {
  Survey host;
  std::vector<pid_t> pids;                         ///< of the members that live, the root first
  std::vector<proto::ProcessFacts> members;        ///< in their order
  std::vector<process::Confinement> confinements;  ///< likewise
  std::vector<GpuUser> gpu_users;
  gpu::Job job;                             ///< of the members, with all that they have allocated
  gpu::Lister lister;                       ///< which listed it
  std::optional<DriverAlone> driver_alone;  ///< the GPU user without the preload library
  std::shared_ptr<const criu::Plugin> criu_plugin;  ///< null: no member needs one
  memory_files::FileFacts memory_files;
  bool suspended = false;
  findings::Findings findings{findings::Side::kSource};
};

/// What a suspended job cannot tell any more, from when it was suspended.
struct SuspendedJob {
  Uuid suspension;                                      ///< the migration that has suspended it
  gpu::Job job;                                         ///< of the members that live
  proto::GroupLimits limits;                            ///< of their control groups
  google::protobuf::RepeatedPtrField<proto::Gpu> gpus;  ///< of the host where it was suspended
  struct Threads {
    pid_t door = 0;
    pid_t cuda_restore = 0;
  };
  std::map<pid_t, Threads> gpu_members;  ///< in their PID namespaces
};

/// kInvalidArgument if it accepts what cannot be accepted.
Status check_accepted(const proto::MigrateRequest& request);

/// Examines the processes `pids`, the first of which was named, and this host for `request`, as far
/// as it can: whatever is missing is a finding. Without blockers there is a GPU user, and the
/// driver is there. The processes are not disturbed, but where the kernel has Landlock threads that
/// may be in a domain stop for some microseconds. Others of them may end meanwhile. A
/// `suspended` job is asked nothing: there are no GPU users. Blocks.
Examination examine(const proto::MigrateRequest& request, const worker::Config& config,
                    const std::vector<pid_t>& pids, const SuspendedJob* suspended = nullptr);

/// What a process that was born later has, and may not have; `limits` are the root's. kNotFound if
/// it has ended. Else what it is in.
Result<process::Confinement> examine_late(const proto::MigrateRequest& request, pid_t pid,
                                          const std::vector<pid_t>& pids,
                                          const proto::GroupLimits& limits);

/// What has become of a process that was examined before: kRefused if it may not be moved any more.
/// For a process that stands still; it may have ended before.
Status examine_again(pid_t pid, const process::Confinement& before);

/// What becomes of TCP connections with one end outside of the job.
process::OutsideTcp outside_tcp(const proto::MigrateRequest& request);

/// The request to the destination about a job without blockers, without the migration's id and
/// the name of who ordered it.
proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const worker::Config& config);

/// Adds what prevents a migration.
void check_access(const gpu::AccessState& state, findings::Findings& findings);

/// "too-many-buffers".
void check_inventory(std::size_t allocations, findings::Findings& findings);

/// kRefused if no member knows the size of an allocation: those that made it have released it, and
/// those that imported it have not mapped it.
Status check_sizes(const gpu::Job& job);

}  // namespace gcr::preflight

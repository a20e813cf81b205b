// How the source examines a process before anything is touched: what it is, what it holds, what the
// host has, and everything that prevents moving it.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>

#include "migrate-agent/gpu_access/gpu_access.h"
#include "migrate-agent/preflight/host_facts.h"
#include "proto/control.pb.h"

namespace gcr::agent {

using Inventory = std::map<std::uint64_t, LocalAllocation>;

struct Examination {
  Survey host;
  std::unique_ptr<GpuAccess> access;
  proto::ProcessFacts process;
  Inventory inventory;
  preflight::Findings findings{preflight::Side::kSource};
};

/// Examines the process and this host for `request`, as far as it can: whatever is missing is a
/// finding. Without blockers among them the access and the driver are there. The process is not
/// disturbed. Blocks.
Examination examine(const proto::MigrateRequest& request, const Config& config);

/// The request to the destination about a process without blockers, without the migration's id and
/// the name of who ordered it.
proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const Config& config);

/// Adds what prevents a migration.
void check_access(const AccessState& state, preflight::Findings& findings);

/// "too-many-buffers".
void check_inventory(const Inventory& inventory, preflight::Findings& findings);

/// As messages describe it before it is the job's.
proto::Buffer describe(const LocalAllocation& allocation);

}  // namespace gcr::agent

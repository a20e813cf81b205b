// The source's look at a process before anything is touched: what it is, what it holds, what the
// host has, and everything that stands in the way of moving it.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>

#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/chunk.h"
#include "migrate-agent/preflight/host_facts.h"
#include "proto/control.pb.h"

namespace gcr::agent {

using Inventory = std::map<mover::BufferId, door::DoorEntry>;

struct Examination {
  Survey host;
  std::optional<Door> door;
  proto::ProcessFacts process;
  Inventory inventory;
  preflight::Findings findings{preflight::Side::kSource};
};

/// Looks at the process and at this host for what `request` asks, as far as it can: whatever is
/// missing is a finding. Without blockers among them the door and the driver are there. The
/// process is not disturbed. Blocks.
Examination examine(const proto::MigrateRequest& request, const Config& config);

/// What the destination is asked about a process without blockers, but for the migration's id and
/// who ordered it.
proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const Config& config);

/// What the preload library says that stands in the way.
void check_door(const door::Summary& summary, preflight::Findings& findings);

/// "too-many-buffers".
void check_inventory(const Inventory& inventory, preflight::Findings& findings);

/// As messages describe it.
proto::Buffer describe(const door::DoorEntry& entry);

}  // namespace gcr::agent

// The source's look at a process before anything is touched: what it is, what it holds, and
// everything that stands in the way of moving it.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/contexts.h"
#include "proto/control.pb.h"

namespace gcr::agent {

using Inventory = std::map<mover::BufferId, door::DoorEntry>;

struct Examination {
  std::shared_ptr<const mover::CudaDriver> driver;
  Door door;
  proto::ProcessFacts facts;
  Inventory inventory;
  std::vector<std::string> warnings;
};

/// kRefused names every blocker that this host can see, all at once. The process is not disturbed.
/// Blocks.
Result<Examination> examine(pid_t pid);

/// What the preload library says that stands in the way.
std::vector<proto::Blocker> door_blockers(const door::Summary& summary);

/// "<text> [<id>]; ...".
std::string join(const std::vector<proto::Blocker>& blockers);

}  // namespace gcr::agent

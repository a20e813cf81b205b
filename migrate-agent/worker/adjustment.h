// What an operator may change of a migration under way, as it came over a network.
#pragma once

#include "proto/control.pb.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// kInvalidArgument if nothing would change, or if a figure is none that can be meant.
Result<registry::Adjust> adjustment_of(const proto::AdjustRequest& request);

}  // namespace gcr::agent

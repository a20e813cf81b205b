// Checks the limits of a migration under way that an operator sends to change.
#pragma once

#include "proto/control.pb.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// kInvalidArgument if nothing would change, or if a value is out of range.
Result<registry::Adjust> adjustment_of(const proto::AdjustRequest& request);

}  // namespace gcr::agent

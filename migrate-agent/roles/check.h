// Preflight alone: what a migration would find at both sides, without anything that a migration
// does.
#pragma once

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// The finding for a destination that could not be asked, or would not answer.
proto::Finding unheard(const Error& error);

}  // namespace gcr::agent

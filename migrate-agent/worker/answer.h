// Whether what was asked for on a socket of this host is granted.
#pragma once

#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Without a sequence.
registry::Answer to_answer(const Status& status);
Status from_answer(const registry::Answer& answer);

}  // namespace gcr::agent

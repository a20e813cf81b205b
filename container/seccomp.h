// The filter for system calls in a container's configuration (linux.seccomp).
#pragma once

#include "container/spec.h"

namespace gcr::container {

/// Allows userfaultfd(2) in a filter that refuses it; changes nothing else, and nothing if it is
/// allowed. Memory is sent in rounds, and without it each round reads all of it.
void allow_userfaultfd(Spec& seccomp);

}  // namespace gcr::container

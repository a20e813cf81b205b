// The filter for system calls in a container's configuration (linux.seccomp).
#pragma once

#include "container/spec.h"

namespace gcr::container {

/// Whether the filter allows userfaultfd(2) with all arguments.
bool allows_userfaultfd(const Spec& seccomp);

/// Allows it in a filter that refuses it; changes nothing else, and nothing if it is allowed.
/// Memory is sent in rounds, and without it each round reads all of it.
void allow_userfaultfd(Spec& seccomp);

}  // namespace gcr::container

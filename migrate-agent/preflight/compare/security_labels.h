// Checks that the AppArmor or SELinux confinement of a process also applies on this host.
#pragma once

#include "migrate-agent/base/findings/catalogue.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// Adds "security-label" if the process would be confined differently.
void compare_security_labels(const proto::ProcessFacts& process, findings::Findings& findings);

}  // namespace gcr::preflight

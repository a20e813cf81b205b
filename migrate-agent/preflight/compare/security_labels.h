// Whether what AppArmor or SELinux confines a process by would confine it on this host too.
#pragma once

#include "migrate-agent/base/findings/catalogue.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// Adds "security-label".
void compare_security_labels(const proto::ProcessFacts& process, findings::Findings& findings);

}  // namespace gcr::preflight

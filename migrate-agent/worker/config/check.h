// Whether everything that a configuration names exists and can be used: `migrate-agent
// --check-config`, and a part of /healthz.
#pragma once

#include <string>
#include <vector>

#include "migrate-agent/worker/config/config.h"

namespace gcr::worker {

/// A sentence for each problem: certificates, directories, programs, addresses, users. Changes
/// nothing; may block. None: an agent with this configuration starts and can be reached.
std::vector<std::string> problems_of(const Config& config);

/// A sentence for what works, and still should be mended: a private key whose mode gives its group
/// or others any right.
std::vector<std::string> warnings_of(const Config& config);

}  // namespace gcr::worker

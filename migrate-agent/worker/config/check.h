// Checks that everything a configuration names exists and can be used: for `migrate-agent
// --check-config` and a part of /healthz.
#pragma once

#include <string>
#include <vector>

#include "migrate-agent/worker/config/config.h"

namespace gcr::worker {

/// Returns a sentence for each problem with certificates, directories, programs, addresses and
/// users. Changes nothing; may block. If there is none, an agent with this configuration starts and
/// can be reached.
std::vector<std::string> problems_of(const Config& config);

/// Returns a sentence for each setting that works but should be corrected: a private key whose mode
/// gives its group or other users any right.
std::vector<std::string> warnings_of(const Config& config);

}  // namespace gcr::worker

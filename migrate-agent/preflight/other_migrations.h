// The migrations that a host takes part in beside the one that is asked about.
#pragma once

#include <optional>

#include "migrate-agent/daemon/config.h"
#include "migrate-agent/journal/journal.h"
#include "migrate-agent/preflight/catalogue.h"
#include "proto/journal.pb.h"
#include "src/base/uuid.h"

namespace gcr::agent {

/// "too-many-migrations" if as many as the configuration allows are unfinished in this role;
/// "in-migration" if one of them has `process`. `own` is left out. Reads the journals; blocks.
void check_other_migrations(const Config& config, journal::Role role, const Uuid& own,
                            const std::optional<journal::ProcessId>& process,
                            preflight::Findings& findings);

}  // namespace gcr::agent

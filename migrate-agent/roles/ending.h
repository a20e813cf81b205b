// What a role tells its daemon when it ends.
#pragma once

#include "proto/control.pb.h"
#include "proto/journal.pb.h"
#include "proto/registry.pb.h"

namespace gcr::agent {

/// How `migration` ended, from `report`. Keeps the phases of the role's own host; the rate is that
/// of all rounds that sent something.
registry::Outcome ending_of(journal::Began migration, proto::MigrateReport report,
                            unsigned journal_errors);

}  // namespace gcr::agent

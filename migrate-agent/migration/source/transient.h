// Short-lived members: a compiler, for example, whose removed files disappear with it.
#pragma once

#include <chrono>

#include "migrate-agent/commit/journal/journal.h"

namespace gcr::migration {

/// How long a refused job is examined again each time one of its processes has ended.
inline constexpr std::chrono::seconds kTransience{5};

/// Whether a member other than the first has ended, or ends within a second. Waits only if one of
/// them is younger than ten seconds.
bool any_member_ends(const journal::ProcessIds& members);

}  // namespace gcr::migration

// Members that live for a moment: a compiler, say, whose files are gone when it is.
#pragma once

#include <chrono>

#include "migrate-agent/commit/journal/journal.h"

namespace gcr::migration {

/// For so long a job that is refused is looked at once more whenever one of its processes has
/// ended.
inline constexpr std::chrono::seconds kTransience{5};

/// Whether a member other than the first has ended, or does so within a second; for that one waits
/// only if one of them is younger than ten seconds.
bool one_ends(const journal::ProcessIds& members);

}  // namespace gcr::migration

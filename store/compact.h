// Removes data that no checkpoint of a directory needs.
#pragma once

#include <cstdint>

#include "store/survey.h"

namespace gcr::store {

/// Removes packs without a needed content, and leftovers of writers that died. With `rewrite`,
/// copies the needed contents of a pack to a new one if they are less than half of it. The caller
/// holds the directory's lock; all manifests must be valid, else kInternal. Returns the number of
/// bytes freed. If the process is killed at any moment, no needed content is lost.
Result<std::uint64_t> remove_unneeded(const Directory& directory, const Needs& needs, bool rewrite);

}  // namespace gcr::store

// Removing what no checkpoint of a directory needs.
#pragma once

#include <cstdint>

#include "store/survey.h"

namespace gcr::store {

/// Removes packs without a content that is needed, and leftovers of writers that died. With
/// `rewrite`, a pack of which less than half is needed is written anew. The caller has the lock,
/// and believes all manifests: kInternal if not. Gives the bytes that are free now. Killed at any
/// moment, all that is needed is still there.
Result<std::uint64_t> remove_unneeded(const Directory& directory, const Needs& needs, bool rewrite);

}  // namespace gcr::store

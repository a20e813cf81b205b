// Mappings and descriptors that the child of a fork inherited from a driver, which does not work
// there.
#pragma once

#include <string_view>

namespace gcr::preload {

/// Unmaps all mappings of files whose paths begin with `prefix`, and closes all descriptors of such
/// files. For the child of a fork, which has one thread: takes no lock, calls neither malloc nor
/// stdio, and preserves errno. Needs one free descriptor; without /proc it does nothing.
void release_files(std::string_view prefix);

}  // namespace gcr::preload

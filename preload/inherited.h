// What the child of a fork inherited from a driver that does not work there.
#pragma once

#include <string_view>

namespace gcr::preload {

/// Unmaps all mappings of files whose paths begin with `prefix`, and closes all descriptors of such
/// files. For the child of a fork, which has one thread: takes no lock, calls neither malloc nor
/// stdio, and leaves errno as it was. Needs one free descriptor; what /proc does not tell stays.
void let_go_of_files(std::string_view prefix);

}  // namespace gcr::preload

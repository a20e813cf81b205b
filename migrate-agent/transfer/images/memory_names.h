// How the names of images begin that have memory which CRIU left out.
#pragma once

#include <string_view>

namespace gcr::images {

/// Of one process: an offset is an address.
inline constexpr std::string_view kPrivateMemory = "private-memory-";
/// Without a name, for processes to map: an offset is one in the memory.
inline constexpr std::string_view kSharedMemory = "shared-memory-";

}  // namespace gcr::images

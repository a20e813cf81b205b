// Limits that several components share.
#pragma once

#include <cstdint>

namespace gcr {

/// Maximum number of VRAM buffers in one migration.
inline constexpr std::uint32_t kMaxBuffers = 65'536;

}  // namespace gcr

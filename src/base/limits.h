// Limits that several parts share.
#pragma once

#include <cstdint>

namespace gcr {

/// Buffers of VRAM in one migration. More are no process.
inline constexpr std::uint32_t kMaxBuffers = 65'536;

}  // namespace gcr

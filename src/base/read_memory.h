// How memory is read that may be another process's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "src/base/result.h"

namespace gcr {

/// Reads whole pages at `address` of a memory. Thread-safe.
using ReadMemory = std::function<Status(std::uint64_t address, std::span<std::byte> bytes)>;

}  // namespace gcr

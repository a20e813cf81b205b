// Signature of a function that reads memory, possibly that of another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "src/base/result.h"

namespace gcr {

/// Reads whole pages at `address` into `bytes`. Thread-safe.
using ReadMemory = std::function<Status(std::uint64_t address, std::span<std::byte> bytes)>;

}  // namespace gcr

// What the two ends of every transport exchange in the same form: why a transfer is broken, and the
// token that admits a sender.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "src/base/result.h"

namespace gcr::transport {

/// The longest token of any transport, in bytes.
inline constexpr std::size_t kMaxTokenBytes = 64;
inline constexpr std::size_t kMaxErrorBytes = 1024;  ///< of an encoded error: code (u16), then text

/// Code and text, cut to `max_bytes`, which is at least 2.
std::string encode_error(const Error& error, std::size_t max_bytes = kMaxErrorBytes);

/// The peer's error; unknown codes become kProtocol, control characters become '?'.
Error decode_error(std::span<const std::byte> payload);

/// Whether two tokens of at most kMaxTokenBytes are equal, in constant time.
bool same_token(const std::string& ours, const std::string& theirs);

}  // namespace gcr::transport

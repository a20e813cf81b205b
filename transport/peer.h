// What every transport's two ends say to each other in the same way: why a transfer is broken, and
// the token that lets a sender in.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "src/base/result.h"

namespace gcr::transport {

/// The longest token that a transport can show, in bytes.
inline constexpr std::size_t kMaxTokenBytes = 64;
inline constexpr std::size_t kMaxErrorBytes = 1024;  ///< of an encoded error: code (u16), then text

/// Code and text, cut to `max_bytes`, which are two at least.
std::string encode_error(const Error& error, std::size_t max_bytes = kMaxErrorBytes);

/// What the peer says; unknown codes become kProtocol, control characters become '?'.
Error decode_error(std::span<const std::byte> payload);

/// Whether two tokens of at most kMaxTokenBytes are equal, in a time that depends on neither.
bool same_token(const std::string& ours, const std::string& theirs);

}  // namespace gcr::transport

// Values that every transport exchanges in the same form: the error that broke a transfer, and the
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

/// Encodes code and text of `error`, cut to `max_bytes`, which is at least 2.
std::string encode_error(const Error& error, std::size_t max_bytes = kMaxErrorBytes);

/// Decodes the peer's error; unknown codes become kProtocol, control characters become '?'.
Error decode_error(std::span<const std::byte> payload);

/// Compares two tokens of at most kMaxTokenBytes in constant time.
bool same_token(const std::string& ours, const std::string& theirs);

}  // namespace gcr::transport

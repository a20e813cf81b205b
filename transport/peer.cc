#include "transport/peer.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "src/base/little_endian.h"

namespace gcr::transport {

std::string encode_error(const Error& error, std::size_t max_bytes) {
  std::string payload(sizeof(std::uint16_t), '\0');
  store_little_endian(reinterpret_cast<std::byte*>(payload.data()),
                      static_cast<std::uint16_t>(error.code()));
  payload += error.message().substr(0, max_bytes - payload.size());
  return payload;
}

Error decode_error(std::span<const std::byte> payload) {
  if (payload.size() < 2) return Error(Code::kProtocol, "the peer sent an empty error");
  const auto number = load_little_endian<std::uint16_t>(payload.data());
  const bool valid = number > 0 && number <= static_cast<std::uint16_t>(Code::kInternal);
  std::string text(reinterpret_cast<const char*>(payload.data()) + 2, payload.size() - 2);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return Error(valid ? static_cast<Code>(number) : Code::kProtocol, std::move(text));
}

bool same_token(const std::string& ours, const std::string& theirs) {
  std::array<char, kMaxTokenBytes> left{};
  std::array<char, kMaxTokenBytes> right{};
  std::memcpy(left.data(), ours.data(), std::min(ours.size(), left.size()));
  std::memcpy(right.data(), theirs.data(), std::min(theirs.size(), right.size()));
  const bool same_length = ours.size() == theirs.size();
  return (CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0) && same_length;
}

}  // namespace gcr::transport

// Keys for the records of a lane (records.h): a secret per direction, exported from the TLS 1.3
// handshake (RFC 8446, 7.5), keys from it as in 7.3, its successors as in 7.2.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/result.h"

namespace gcr::transport {

inline constexpr std::size_t kNonceBytes = 12;

/// Wiped when destroyed. Copies are as secret.
struct RecordKey {
  std::array<unsigned char, EVP_MAX_KEY_LENGTH> key{};  ///< its first `key_bytes`
  std::size_t key_bytes = 0;
  std::array<unsigned char, kNonceBytes> nonce{};  ///< of record 0; others: by exclusive or

  RecordKey() = default;
  RecordKey(const RecordKey&) = default;
  RecordKey& operator=(const RecordKey&) = default;
  ~RecordKey();
};

/// What one direction's keys come from. Wiped when destroyed.
class TrafficSecret {
 public:
  enum class From { kClient, kServer };

  /// After the handshake of `ssl`, which is not needed afterwards: the same at both ends, and known
  /// to nobody else. Fails with kUnsupported if the cipher is none of TLS 1.3's usual three.
  static Result<TrafficSecret> export_from(SSL* ssl, From from);

  TrafficSecret(const TrafficSecret&) = default;
  TrafficSecret& operator=(const TrafficSecret&) = default;
  ~TrafficSecret();

  /// The AEAD that the handshake agreed on; lives as long as the program.
  const EVP_CIPHER* cipher() const { return cipher_; }

  Result<RecordKey> key() const;

  /// Becomes its successor, from which it cannot be computed back.
  Status update();

 private:
  TrafficSecret() = default;
  Status expand(const char* label, std::span<unsigned char> out) const;

  const EVP_CIPHER* cipher_ = nullptr;
  const char* hash_ = nullptr;
  std::array<unsigned char, EVP_MAX_MD_SIZE> secret_{};
  std::size_t secret_bytes_ = 0;
};

}  // namespace gcr::transport

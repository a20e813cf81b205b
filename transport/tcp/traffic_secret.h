// Keys for the records of a lane (records.h). Each direction has a secret, which is exported from
// the TLS 1.3 handshake (RFC 8446, 7.5). Keys are derived from it as in 7.3, its successors as in
// 7.2.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/result.h"

namespace gcr::transport {

inline constexpr std::size_t kNonceBytes = 12;

/// The key and nonce of a direction. The destructor wipes it; a copy is as secret.
struct RecordKey {
  std::array<unsigned char, EVP_MAX_KEY_LENGTH> key{};  ///< its first `key_bytes`
  std::size_t key_bytes = 0;
  std::array<unsigned char, kNonceBytes> nonce{};  ///< of record 0; record i: XOR i

  RecordKey() = default;
  RecordKey(const RecordKey&) = default;
  RecordKey& operator=(const RecordKey&) = default;
  ~RecordKey();
};

/// The secret from which the keys of one direction are derived. The destructor wipes it.
class TrafficSecret {
 public:
  enum class From { kClient, kServer };

  /// Exports the secret from `ssl` after its handshake; both ends, and only they, get the same.
  /// `ssl` is not needed afterwards. Fails with kUnsupported unless the cipher is one of the usual
  /// three of TLS 1.3.
  static Result<TrafficSecret> export_from(SSL* ssl, From from);

  TrafficSecret(const TrafficSecret&) = default;
  TrafficSecret& operator=(const TrafficSecret&) = default;
  ~TrafficSecret();

  /// The AEAD that the handshake agreed on; lives as long as the program.
  const EVP_CIPHER* cipher() const { return cipher_; }

  Result<RecordKey> key() const;

  /// Replaces the secret by its successor, from which it cannot be recovered.
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

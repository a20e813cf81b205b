// The records that protect a lane under TLS: TLS 1.3 records (RFC 8446, section 5), encrypted from
// the caller's memory and decrypted into it. OpenSSL performs the handshake and the cryptography;
// its SSL_write and SSL_read would copy each byte once more and make a system call per 16 KiB.
//
// A record is a header of 5 bytes, which is authenticated too, then the ciphertext of its content
// and of one type byte (data, or a key update), then a tag of 16 bytes. Records are never empty and
// never padded. Record i of a key has the nonce of record 0 XOR i: a record that is lost, repeated,
// reordered or changed fails authentication.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/raw_bytes.h"
#include "src/base/result.h"
#include "transport/tcp/traffic_secret.h"

namespace gcr::transport {

inline constexpr std::size_t kMaxRecordContentBytes = 16384;
inline constexpr std::size_t kRecordHeaderBytes = 5;
inline constexpr std::size_t kTagBytes = 16;
inline constexpr std::size_t kMaxRecordBytes =
    kRecordHeaderBytes + kMaxRecordContentBytes + 1 + kTagBytes;
/// The most records that one key encrypts, below AES-GCM's limit for full records (RFC 8446, 5.5).
inline constexpr std::uint64_t kMaxRecordsOfAKey = 1 << 24;

/// One direction's AEAD, with the number of the next record. Move-only.
class RecordCipher {
 public:
  static Result<RecordCipher> create(const TrafficSecret& secret, bool seal);

  /// Switches to the next key.
  Status update();

  /// Number of records that were begun with this key.
  std::uint64_t records() const { return sequence_; }

  /// Begins a record; its header is authenticated.
  Status begin(std::span<const std::byte, kRecordHeaderBytes> header);
  /// Encrypts or decrypts `in` to `out`, which has as many bytes and may be `in`.
  Status apply(std::span<const std::byte> in, std::byte* out);
  Status finish_sealing(std::byte* tag);
  /// Fails with kProtocol if any of the record's bytes is not what was sealed.
  Status finish_opening(const std::byte* tag);

 private:
  RecordCipher(const TrafficSecret& secret, bool seal) : secret_(secret), seal_(seal) {}
  Status start_key();

  TrafficSecret secret_;
  bool seal_;
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context_{nullptr,
                                                                           EVP_CIPHER_CTX_free};
  std::array<unsigned char, kNonceBytes> nonce_{};
  std::uint64_t sequence_ = 0;
};

/// Collects sealed records, to be sent in one call. Used by one thread at a time.
class RecordSealer {
 public:
  /// Creates a sealer, which changes its key after `records_of_a_key` records.
  static Result<RecordSealer> create(const TrafficSecret& secret,
                                     std::uint64_t records_of_a_key = kMaxRecordsOfAKey);

  /// Adds one record with as much of `first`, then of `second`, as fits, and removes those bytes
  /// from the spans. At least one span must have bytes; full() must be false.
  Status add(std::span<const std::byte>& first, std::span<const std::byte>& second);

  /// Adds the record that announces a new key, and switches to it. full() must be false.
  Status add_update();

  /// Whether the buffer has no space for another record and a key update before it.
  bool full() const { return buffer_.size() - size_ < 2 * kMaxRecordBytes; }

  /// All records that were added since clear().
  std::span<const std::byte> sealed() const { return std::span(buffer_).first(size_); }
  void clear() { size_ = 0; }

 private:
  RecordSealer(RecordCipher cipher, std::uint64_t records_of_a_key);
  Status seal(std::span<const std::byte> first, std::span<const std::byte> second, std::byte type);

  RecordCipher cipher_;
  std::uint64_t records_of_a_key_;
  RawBytes buffer_;
  std::size_t size_ = 0;
};

/// Opens what the other end's RecordSealer sealed. Used by one thread at a time.
class RecordOpener {
 public:
  static Result<RecordOpener> create(const TrafficSecret& secret);

  /// The free part of the buffer, for the next bytes from the network; report their number to
  /// received(). Never empty after open() has returned 0.
  std::span<std::byte> room();
  void add(std::size_t bytes) { end_ += bytes; }

  /// Decrypts the next bytes into the beginning of `out`, which is not empty, and returns their
  /// number; 0: it needs more from the network. After a failure (kProtocol) the content of `out` is
  /// undefined, and every later call fails too.
  Result<std::size_t> open(std::span<std::byte> out);

  /// Whether bytes from the network are left that open() has not returned yet.
  bool pending() const { return begin_ != end_ || !rest_.empty(); }

 private:
  explicit RecordOpener(RecordCipher cipher);
  Result<std::size_t> open_next(std::span<std::byte> out);
  Result<std::size_t> open_record(std::span<const std::byte> record, std::span<std::byte> out);

  RecordCipher cipher_;
  bool failed_ = false;
  RawBytes buffer_;  ///< from the network: begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  RawBytes overflow_;                ///< content that `out` had no room for
  std::span<const std::byte> rest_;  ///< the part of overflow_ not yet returned
};

}  // namespace gcr::transport

// The records that protect a lane under TLS: those of TLS 1.3 (RFC 8446, section 5), encrypted from
// the caller's memory and decrypted into it. OpenSSL makes the handshake and does the cryptography;
// its SSL_write and SSL_read would copy each byte once more and make a system call per 16 KiB.
//
// A record is 5 bytes of header, which are authenticated too, then the ciphertext of its content
// and of one byte that says what it is (data, or a change of key), then a tag of 16 bytes. Records
// are never empty and never padded. Record i of a key has the nonce of record 0 XOR i: a record
// that is lost, repeated, reordered or changed fails authentication.
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
/// Below AES-GCM's limit for full records (RFC 8446, 5.5).
inline constexpr std::uint64_t kMaxRecordsOfAKey = 1 << 24;

/// One direction's AEAD, with the number of the next record. Move-only.
class RecordCipher {
 public:
  static Result<RecordCipher> create(const TrafficSecret& secret, bool seal);

  /// Goes on with the next key.
  Status update();

  /// Records that were begun with this key.
  std::uint64_t records() const { return sequence_; }

  /// Begins a record; its header is authenticated.
  Status begin(std::span<const std::byte, kRecordHeaderBytes> header);
  /// `out` has as many bytes as `in`, and may be `in`.
  Status apply(std::span<const std::byte> in, std::byte* out);
  Status finish_sealing(std::byte* tag);
  /// Fails with kProtocol if any of the record's bytes is not what was sealed.
  Status finish_opening(const std::byte* tag);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  RecordCipher(const TrafficSecret& secret, bool seal) : secret_(secret), seal_(seal) {}
  Status start_key();

  TrafficSecret secret_;
  bool seal_;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  std::array<unsigned char, kNonceBytes> nonce_{};
  std::uint64_t sequence_ = 0;
};

/// Collects sealed records, to be sent in one call. Used by one thread at a time.
class RecordSealer {
 public:
  /// Changes the key by itself after `records_of_a_key`.
  static Result<RecordSealer> create(const TrafficSecret& secret,
                                     std::uint64_t records_of_a_key = kMaxRecordsOfAKey);

  /// Adds one record with as much of `first`, then of `second`, as fits; removes that from them. At
  /// least one of them has bytes; full() must be false.
  Status add(std::span<const std::byte>& first, std::span<const std::byte>& second);

  /// Adds the record that announces a new key, and takes that key. full() must be false.
  Status add_update();

  /// Whether there is no room for another record and, before it, one that announces a new key.
  bool full() const { return buffer_.size() - size_ < 2 * kMaxRecordBytes; }

  /// Everything that was added since clear().
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

  /// Where the next bytes from the network go, never empty after open() gave 0; then say how many.
  std::span<std::byte> room();
  void add(std::size_t bytes) { end_ += bytes; }

  /// Fills the beginning of `out`, which is not empty, with what comes next, and gives how much
  /// that was; 0: more from the network is needed. After a failure (kProtocol) nothing that was put
  /// into `out` by that call means anything, and every later call fails, too.
  Result<std::size_t> open(std::span<std::byte> out);

  /// Whether something was taken from the network that open() has not given yet.
  bool pending() const { return begin_ != end_ || !rest_.empty(); }

 private:
  explicit RecordOpener(RecordCipher cipher);
  Result<std::size_t> open_next(std::span<std::byte> out);
  Result<std::size_t> open_record(std::span<const std::byte> record, std::span<std::byte> out);
  Status take_update(std::span<const std::byte> content);

  RecordCipher cipher_;
  bool failed_ = false;
  RawBytes buffer_;  ///< from the network: begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  RawBytes overflow_;                ///< content that `out` had no room for
  std::span<const std::byte> rest_;  ///< what is left of it
};

}  // namespace gcr::transport

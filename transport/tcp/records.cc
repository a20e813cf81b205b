#include "transport/tcp/records.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace gcr::transport {
namespace {

// Size of the buffers for sealed and for received records: large enough for few system calls, small
// enough for a core's cache.
constexpr std::size_t kBufferBytes = 9 * kMaxRecordBytes;

// RFC 8446: ContentType application_data and handshake, legacy_record_version, and a KeyUpdate that
// asks for none in return.
constexpr std::byte kData{23};
constexpr std::byte kHandshake{22};
constexpr std::byte kVersion{3};
constexpr std::array<std::byte, 5> kKeyUpdate = {std::byte{24}, std::byte{0}, std::byte{0},
                                                 std::byte{1}, std::byte{0}};

Error cannot_seal() {
  return Error(Code::kInternal, "OpenSSL cannot encrypt on a data connection");
}

Error bad_record() {
  return Error(Code::kProtocol, "receiving data: a TLS record failed authentication");
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

// ---- RecordCipher ----

Result<RecordCipher> RecordCipher::create(const TrafficSecret& secret, bool seal) {
  RecordCipher made(secret, seal);
  GCR_TRY(made.start_key());
  return made;
}

Status RecordCipher::start_key() {
  GCR_ASSIGN(const RecordKey key, secret_.key());
  context_.reset(EVP_CIPHER_CTX_new());
  if (!context_ || EVP_CipherInit_ex(context_.get(), secret_.cipher(), nullptr, key.key.data(),
                                     nullptr, seal_ ? 1 : 0) != 1) {
    return cannot_seal();
  }
  nonce_ = key.nonce;
  sequence_ = 0;
  return {};
}

Status RecordCipher::update() {
  GCR_TRY(secret_.update());
  return start_key();
}

Status RecordCipher::begin(std::span<const std::byte, kRecordHeaderBytes> header) {
  std::array<unsigned char, kNonceBytes> nonce = nonce_;
  for (std::size_t i = 0; i < sizeof sequence_; ++i) {
    nonce[kNonceBytes - 1 - i] ^= static_cast<unsigned char>(sequence_ >> (8 * i));
  }
  ++sequence_;
  int length = 0;
  if (EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) != 1 ||
      EVP_CipherUpdate(context_.get(), nullptr, &length, raw(header.data()),
                       static_cast<int>(header.size())) != 1) {
    return cannot_seal();
  }
  return {};
}

Status RecordCipher::apply(std::span<const std::byte> in, std::byte* out) {
  int length = 0;
  if (in.empty()) return {};
  if (EVP_CipherUpdate(context_.get(), raw(out), &length, raw(in.data()),
                       static_cast<int>(in.size())) != 1) {
    return cannot_seal();
  }
  return {};
}

Status RecordCipher::finish_sealing(std::byte* tag) {
  std::array<unsigned char, EVP_MAX_BLOCK_LENGTH> nothing;
  int length = 0;
  if (EVP_CipherFinal_ex(context_.get(), nothing.data(), &length) != 1 ||
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) != 1) {
    return cannot_seal();
  }
  return {};
}

Status RecordCipher::finish_opening(const std::byte* tag) {
  std::array<unsigned char, EVP_MAX_BLOCK_LENGTH> nothing;
  int length = 0;
  if (EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                          const_cast<std::byte*>(tag)) != 1) {
    return cannot_seal();
  }
  if (EVP_CipherFinal_ex(context_.get(), nothing.data(), &length) != 1) return bad_record();
  return {};
}

// ---- RecordSealer ----

RecordSealer::RecordSealer(RecordCipher cipher, std::uint64_t records_of_a_key)
    : cipher_(std::move(cipher)), records_of_a_key_(records_of_a_key), buffer_(kBufferBytes) {}

Result<RecordSealer> RecordSealer::create(const TrafficSecret& secret,
                                          std::uint64_t records_of_a_key) {
  GCR_ASSIGN(RecordCipher cipher, RecordCipher::create(secret, true));
  return RecordSealer(std::move(cipher), records_of_a_key);
}

Status RecordSealer::add(std::span<const std::byte>& first, std::span<const std::byte>& second) {
  if (cipher_.records() >= records_of_a_key_) GCR_TRY(add_update());
  const std::size_t of_first = std::min(first.size(), kMaxRecordContentBytes);
  const std::size_t of_second = std::min(second.size(), kMaxRecordContentBytes - of_first);
  GCR_TRY(seal(first.first(of_first), second.first(of_second), kData));
  first = first.subspan(of_first);
  second = second.subspan(of_second);
  return {};
}

Status RecordSealer::add_update() {
  GCR_TRY(seal(kKeyUpdate, {}, kHandshake));
  return cipher_.update();
}

Status RecordSealer::seal(std::span<const std::byte> first, std::span<const std::byte> second,
                          std::byte type) {
  std::byte* const record = buffer_.data() + size_;
  const std::size_t content = first.size() + second.size();
  const std::size_t length = content + 1 + kTagBytes;
  const std::array<std::byte, kRecordHeaderBytes> header = {kData, kVersion, kVersion,
                                                            static_cast<std::byte>(length >> 8),
                                                            static_cast<std::byte>(length & 0xff)};
  std::memcpy(record, header.data(), header.size());
  std::byte* const sealed = record + header.size();
  GCR_TRY(cipher_.begin(header));
  GCR_TRY(cipher_.apply(first, sealed));
  GCR_TRY(cipher_.apply(second, sealed + first.size()));
  GCR_TRY(cipher_.apply(std::span(&type, 1), sealed + content));
  GCR_TRY(cipher_.finish_sealing(sealed + content + 1));
  size_ += header.size() + length;
  return {};
}

// ---- RecordOpener ----

RecordOpener::RecordOpener(RecordCipher cipher)
    : cipher_(std::move(cipher)), buffer_(kBufferBytes), overflow_(kMaxRecordContentBytes) {}

Result<RecordOpener> RecordOpener::create(const TrafficSecret& secret) {
  GCR_ASSIGN(RecordCipher cipher, RecordCipher::create(secret, false));
  return RecordOpener(std::move(cipher));
}

std::span<std::byte> RecordOpener::room() {
  // Less than one record is left, so this moves few bytes.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  return std::span(buffer_).subspan(end_);
}

Result<std::size_t> RecordOpener::open(std::span<std::byte> out) {
  if (failed_) return bad_record();
  Result<std::size_t> opened = open_next(out);
  failed_ = !opened;
  return opened;
}

Result<std::size_t> RecordOpener::open_next(std::span<std::byte> out) {
  if (!rest_.empty()) {
    const std::size_t count = std::min(rest_.size(), out.size());
    std::memcpy(out.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }
  for (;;) {
    const auto waiting = std::span<const std::byte>(buffer_).subspan(begin_, end_ - begin_);
    if (waiting.size() < kRecordHeaderBytes) return std::size_t{0};
    const std::size_t length =
        std::to_integer<std::size_t>(waiting[3]) << 8 | std::to_integer<std::size_t>(waiting[4]);
    if (waiting[0] != kData || waiting[1] != kVersion || waiting[2] != kVersion ||
        length < 1 + 1 + kTagBytes || length > kMaxRecordBytes - kRecordHeaderBytes) {
      return Error(Code::kProtocol,
                   "receiving data: the peer sent bytes that are not a TLS 1.3 record");
    }
    if (waiting.size() < kRecordHeaderBytes + length) return std::size_t{0};
    begin_ += kRecordHeaderBytes + length;
    GCR_ASSIGN(const std::size_t count,
               open_record(waiting.first(kRecordHeaderBytes + length), out));
    if (count > 0) return count;
  }
}

/// Opens one record. Returns the number of bytes written to `out`; 0 if the record was not data.
Result<std::size_t> RecordOpener::open_record(std::span<const std::byte> record,
                                              std::span<std::byte> out) {
  const auto sealed = record.subspan(kRecordHeaderBytes);
  const auto content = sealed.first(sealed.size() - kTagBytes - 1);
  const std::size_t direct = std::min(content.size(), out.size());
  std::byte type{};
  GCR_TRY(cipher_.begin(record.first<kRecordHeaderBytes>()));
  GCR_TRY(cipher_.apply(content.first(direct), out.data()));
  GCR_TRY(cipher_.apply(content.subspan(direct), overflow_.data()));
  GCR_TRY(cipher_.apply(sealed.subspan(content.size(), 1), &type));
  GCR_TRY(cipher_.finish_opening(sealed.data() + content.size() + 1));
  if (type == kData) {
    rest_ = std::span(overflow_).first(content.size() - direct);
    return direct;
  }
  std::array<std::byte, kKeyUpdate.size()> said{};
  if (type != kHandshake || content.size() != said.size()) {
    return Error(Code::kProtocol, "receiving data: a record has an unexpected type");
  }
  std::memcpy(said.data(), out.data(), direct);
  std::memcpy(said.data() + direct, overflow_.data(), content.size() - direct);
  if (said != kKeyUpdate) {
    return Error(Code::kProtocol, "receiving data: an unexpected TLS message");
  }
  GCR_TRY(cipher_.update());
  return std::size_t{0};
}

}  // namespace gcr::transport

#include "migrate-agent/transfer/images/image_digest.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>
#include <openssl/sha.h>

#include <memory>
#include <tuple>

#include "src/base/little_endian.h"

namespace gcr::images {
namespace {

constexpr std::size_t kDigestBytes = 16;
constexpr std::size_t kNonceBytes = 12;
constexpr std::size_t kTagBytes = 16;
constexpr std::string_view kTags = "gcr-migrate: tags of images";
constexpr std::string_view kDigests = "gcr-migrate: digests of images";

ImageDigest digest_of(std::span<const std::byte, kDigestBytes> bytes) {
  return {
      {load_little_endian<std::uint64_t>(&bytes[0]), load_little_endian<std::uint64_t>(&bytes[8])}};
}

using Key = std::array<unsigned char, 32>;

bool hmac(std::span<const std::byte> key, std::span<const std::byte> bytes, Key& out) {
  static_assert(std::tuple_size_v<Key> == SHA256_DIGEST_LENGTH);
  return HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
              reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data(),
              nullptr) != nullptr;
}

Error failed() { return Error(Code::kInternal, "OpenSSL cannot digest an image"); }

}  // namespace

ImageDigest& ImageDigest::operator+=(const ImageDigest& other) {
  words[0] += other.words[0];
  words[1] += other.words[1] + (words[0] < other.words[0] ? 1 : 0);
  return *this;
}

std::string ImageDigest::to_bytes() const {
  std::string bytes(kDigestBytes, '\0');
  auto* const data = reinterpret_cast<std::byte*>(bytes.data());
  store_little_endian(data, words[0]);
  store_little_endian(data + 8, words[1]);
  return bytes;
}

Result<ImageDigest> ImageDigest::from_bytes(std::string_view bytes) {
  if (bytes.size() != kDigestBytes) {
    return Error(Code::kProtocol, "an image's digest is not 16 bytes long");
  }
  return digest_of(std::as_bytes(std::span(bytes)).first<kDigestBytes>());
}

WindowDigester::WindowDigester(std::span<const std::byte, 32> secret) {
  (void)hmac(secret, std::as_bytes(std::span(kTags)), tag_key_);
  (void)hmac(secret, std::as_bytes(std::span(kDigests)), digest_key_);
}

Result<ImageDigest> WindowDigester::digest(const BlockHeader& header,
                                           std::span<const std::byte> pages) const {
  BlockHeader plain = header;
  plain.codec = store::Codec::kNone;
  plain.stored_bytes = static_cast<std::uint32_t>(pages.size());
  const BlockHeaderBytes described = encode(plain);
  std::array<unsigned char, kNonceBytes + kTagBytes> nonce_and_tag{};
  auto* const nonce = reinterpret_cast<std::byte*>(nonce_and_tag.data());
  store_little_endian(nonce, header.file);
  store_little_endian(nonce + sizeof(header.file), header.offset | header.round);
  static_assert(kMaxRounds <= kWindowBytes, "offsets leave the nonce room for the round");
  static const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> gmac(
      EVP_MAC_fetch(nullptr, "GMAC", nullptr), EVP_MAC_free);
  if (gmac == nullptr) return failed();
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(
      EVP_MAC_CTX_new(gmac.get()), EVP_MAC_CTX_free);
  char cipher[] = "AES-256-GCM";
  const std::array<OSSL_PARAM, 3> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce_and_tag.data(), kNonceBytes),
      OSSL_PARAM_construct_end()};
  Key digest{};
  std::size_t length = 0;
  const auto update = [&](std::span<const std::byte> bytes) {
    return EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                          bytes.size()) == 1;
  };
  if (context == nullptr ||
      EVP_MAC_init(context.get(), tag_key_.data(), tag_key_.size(), parameters.data()) != 1 ||
      !update(described) || !update(pages) ||
      EVP_MAC_final(context.get(), &nonce_and_tag[kNonceBytes], &length, kTagBytes) != 1 ||
      !hmac(std::as_bytes(std::span(digest_key_)), std::as_bytes(std::span(nonce_and_tag)),
            digest)) {
    return failed();
  }
  return digest_of(std::as_bytes(std::span(digest)).first<kDigestBytes>());
}

}  // namespace gcr::images

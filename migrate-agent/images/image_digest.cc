#include "migrate-agent/images/image_digest.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>

#include <cstring>

#include "src/base/little_endian.h"

namespace gcr::images {
namespace {

constexpr std::size_t kDigestBytes = 16;
constexpr std::string_view kPurpose = "gcr-migrate: digests of images";

struct FreeMac {
  void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};

ImageDigest digest_of(std::span<const std::byte, kDigestBytes> bytes) {
  return {
      {load_little_endian<std::uint64_t>(&bytes[0]), load_little_endian<std::uint64_t>(&bytes[8])}};
}

Error failed() { return Error(Code::kInternal, "OpenSSL cannot digest an image"); }

}  // namespace

ImageDigest& ImageDigest::operator+=(const ImageDigest& other) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] += other.words[i];
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
  unsigned length = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size(), key_.data(),
       &length);
}

Result<ImageDigest> WindowDigester::digest(const BlockHeader& header,
                                           std::span<const std::byte> pages) const {
  BlockHeader plain = header;
  plain.codec = Codec::kNone;
  plain.stored_bytes = static_cast<std::uint32_t>(pages.size());
  const BlockHeaderBytes described = encode(plain);
  std::array<unsigned char, 12> nonce{};  // file and offset, as they stand in the header
  std::memcpy(nonce.data(), &described[4], nonce.size());
  static const std::unique_ptr<EVP_MAC, FreeMac> gmac(EVP_MAC_fetch(nullptr, "GMAC", nullptr));
  if (gmac == nullptr) return failed();
  const std::unique_ptr<EVP_MAC_CTX, FreeMac> context(EVP_MAC_CTX_new(gmac.get()));
  char cipher[] = "AES-256-GCM";
  const std::array<OSSL_PARAM, 3> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce.data(), nonce.size()),
      OSSL_PARAM_construct_end()};
  std::array<unsigned char, kDigestBytes> digest{};
  std::size_t length = 0;
  const auto update = [&](std::span<const std::byte> bytes) {
    return EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                          bytes.size()) == 1;
  };
  if (context == nullptr ||
      EVP_MAC_init(context.get(), key_.data(), key_.size(), parameters.data()) != 1 ||
      !update(described) || !update(pages) ||
      EVP_MAC_final(context.get(), digest.data(), &length, digest.size()) != 1) {
    return failed();
  }
  return digest_of(std::as_bytes(std::span(digest)));
}

}  // namespace gcr::images

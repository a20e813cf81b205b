#include "transport/tcp/traffic_secret.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>

namespace gcr::transport {
namespace {

// RFC 5705: labels that begin with EXPERIMENTAL need no registration.
constexpr std::string_view kLaneLabel = "EXPERIMENTAL gcr-migrate lane";

struct Suite {
  std::uint16_t id;
  const EVP_CIPHER* (*cipher)();
  const char* hash;
  std::size_t secret_bytes;
};

constexpr Suite kSuites[] = {
    {TLS1_3_CK_AES_128_GCM_SHA256 & 0xffff, EVP_aes_128_gcm, "SHA256", 32},
    {TLS1_3_CK_AES_256_GCM_SHA384 & 0xffff, EVP_aes_256_gcm, "SHA384", 48},
    {TLS1_3_CK_CHACHA20_POLY1305_SHA256 & 0xffff, EVP_chacha20_poly1305, "SHA256", 32}};

Error cannot_derive() {
  return Error(Code::kInternal, "OpenSSL cannot derive the keys of a data connection");
}

OSSL_PARAM text(const char* name, std::string_view value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

}  // namespace

RecordKey::~RecordKey() {
  OPENSSL_cleanse(key.data(), key.size());
  OPENSSL_cleanse(nonce.data(), nonce.size());
}

TrafficSecret::~TrafficSecret() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

Result<TrafficSecret> TrafficSecret::export_from(SSL* ssl, From from) {
  const auto id = SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(ssl));
  const auto* const suite = std::ranges::find(kSuites, id, &Suite::id);
  if (suite == std::end(kSuites)) {
    return Error(Code::kUnsupported, "the data connection uses a TLS cipher that is not supported");
  }
  TrafficSecret made;
  made.cipher_ = suite->cipher();
  made.hash_ = suite->hash;
  made.secret_bytes_ = suite->secret_bytes;
  const std::string_view who = from == From::kClient ? "client" : "server";
  if (SSL_export_keying_material(
          ssl, made.secret_.data(), made.secret_bytes_, kLaneLabel.data(), kLaneLabel.size(),
          reinterpret_cast<const unsigned char*>(who.data()), who.size(), 1) != 1) {
    return cannot_derive();
  }
  return made;
}

/// Computes HKDF-Expand-Label (RFC 8446, 7.1) without a context.
Status TrafficSecret::expand(const char* label, std::span<unsigned char> out) const {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_TLS1_3_KDF, nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  if (!context) return cannot_derive();
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  const std::array<OSSL_PARAM, 7> parameters = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, const_cast<char*>(hash_), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY,
                                        const_cast<unsigned char*>(secret_.data()), secret_bytes_),
      text(OSSL_KDF_PARAM_PREFIX, "tls13 "),
      text(OSSL_KDF_PARAM_LABEL, label),
      text(OSSL_KDF_PARAM_DATA, ""),
      OSSL_PARAM_construct_end(),
  };
  if (EVP_KDF_derive(context.get(), out.data(), out.size(), parameters.data()) != 1) {
    return cannot_derive();
  }
  return {};
}

Result<RecordKey> TrafficSecret::key() const {
  RecordKey made;
  made.key_bytes = static_cast<std::size_t>(EVP_CIPHER_get_key_length(cipher_));
  GCR_TRY(expand("key", std::span(made.key).first(made.key_bytes)));
  GCR_TRY(expand("iv", made.nonce));
  return made;
}

Status TrafficSecret::update() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> next{};
  const Status expanded = expand("traffic upd", std::span(next).first(secret_bytes_));
  if (expanded) secret_ = next;
  OPENSSL_cleanse(next.data(), next.size());
  return expanded;
}

}  // namespace gcr::transport

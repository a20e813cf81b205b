#include "transport/tcp/binding.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <string_view>

namespace gcr::transport {
namespace {

// RFC 5705: labels that begin so need no registration.
constexpr std::string_view kBindingLabel = "EXPERIMENTAL gcr-migrate transfer";

}  // namespace

Result<Binding> export_binding(SSL* ssl, const Uuid& transfer) {
  Binding binding{};
  if (SSL_export_keying_material(ssl, binding.data(), binding.size(), kBindingLabel.data(),
                                 kBindingLabel.size(), transfer.bytes.data(), transfer.bytes.size(),
                                 1) != 1) {
    return Error(Code::kInternal, "OpenSSL cannot bind a data connection to its transfer");
  }
  return binding;
}

std::string bound_token(const std::string& token, const Binding& binding) {
  std::string proof(SHA256_DIGEST_LENGTH, '\0');
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), binding.data(), binding.size(),
       reinterpret_cast<unsigned char*>(proof.data()), nullptr);
  return proof;
}

}  // namespace gcr::transport

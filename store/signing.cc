#include "store/signing.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "src/control/identity.h"

namespace gcr::store {
namespace {

using control::Openssl;

constexpr std::size_t kMaxCertificates = 16;

using Certificates = std::vector<Openssl<X509>>;

/// None if `from` is null or has none.
Certificates read_certificates(const Openssl<BIO>& from) {
  Certificates certificates;
  if (!from) return certificates;
  while (certificates.size() < kMaxCertificates) {
    X509* const one = PEM_read_bio_X509(from.get(), nullptr, control::no_passphrase, nullptr);
    if (one == nullptr) break;
    certificates.emplace_back(one);
  }
  ERR_clear_error();  // OpenSSL reports the end of the file as an error
  return certificates;
}

Result<Certificates> own_certificates(const control::TlsFiles& files) {
  const Openssl<BIO> file(BIO_new_file(files.certificate.c_str(), "r"));
  Certificates certificates = read_certificates(file);
  if (certificates.empty()) return control::unusable_file("certificate", files.certificate);
  return certificates;
}

/// SHA-256, or null for Ed25519 and Ed448, which have a built-in digest.
const EVP_MD* digest_for(const EVP_PKEY* key) {
  const int kind = EVP_PKEY_get_base_id(key);
  return kind == EVP_PKEY_ED25519 || kind == EVP_PKEY_ED448 ? nullptr : EVP_sha256();
}

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// Writes the certificates only; their file may contain the key too.
Result<std::string> as_text(const Certificates& certificates) {
  const Openssl<BIO> memory(BIO_new(BIO_s_mem()));
  for (const auto& certificate : certificates) {
    if (!memory || PEM_write_bio_X509(memory.get(), certificate.get()) != 1) {
      return Error(Code::kInternal, "cannot write a certificate: " + control::openssl_reason());
    }
  }
  char* text = nullptr;
  const long length = BIO_get_mem_data(memory.get(), &text);
  if (static_cast<std::uint64_t>(length) > kMaxChainBytes) {
    return Error(Code::kInvalidArgument, "the certificate chain is too long to be stored");
  }
  return std::string(text, static_cast<std::size_t>(length));
}

/// Verifies a chain at the present time; the error is the reason.
Status check_chain(X509_STORE* store, const Certificates& chain) {
  const Openssl<X509_STORE_CTX> context(X509_STORE_CTX_new());
  const Openssl<STACK_OF(X509)> others(sk_X509_new_null());
  for (const auto& certificate : chain) sk_X509_push(others.get(), certificate.get());
  if (!context || !others ||
      X509_STORE_CTX_init(context.get(), store, chain.front().get(), others.get()) != 1) {
    return Error(Code::kInternal, "cannot verify a certificate: " + control::openssl_reason());
  }
  if (X509_verify_cert(context.get()) == 1) return {};
  ERR_clear_error();
  return Error(Code::kPermissionDenied,
               X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
}

}  // namespace

Result<Signed> sign(std::span<const std::byte> bytes, const control::TlsFiles& files) {
  GCR_ASSIGN(const Certificates certificates, own_certificates(files));
  GCR_ASSIGN(const auto key, control::read_private_key(files.key));
  if (X509_check_private_key(certificates.front().get(), key.get()) != 1) {
    return control::unusable_file("private key", files.key);
  }
  Signed result;
  GCR_ASSIGN(result.chain, as_text(certificates));
  const Openssl<EVP_MD_CTX> context(EVP_MD_CTX_new());
  std::size_t length = kMaxSignatureBytes;
  result.signature.resize(length);
  auto* const to = reinterpret_cast<unsigned char*>(result.signature.data());
  if (!context ||
      EVP_DigestSignInit(context.get(), nullptr, digest_for(key.get()), nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), to, &length, raw(bytes), bytes.size()) != 1) {
    return Error(Code::kInvalidArgument, fmt::format("cannot sign with the private key {}: {}",
                                                     files.key, control::openssl_reason()));
  }
  result.signature.resize(length);
  return result;
}

Result<std::string> own_name(const control::TlsFiles& files) {
  GCR_ASSIGN(const Certificates certificates, own_certificates(files));
  return control::common_name(certificates.front().get());
}

Result<Signer> Signer::verify(const std::string& chain, const control::TlsFiles& files) {
  const Openssl<BIO> memory(BIO_new_mem_buf(chain.data(), static_cast<int>(chain.size())));
  const Certificates certificates = read_certificates(memory);
  if (certificates.empty()) return Error(Code::kPermissionDenied, "it shows no certificate");
  X509* const leaf = certificates.front().get();
  std::string name = control::common_name(leaf);
  const Openssl<X509_STORE> store(X509_STORE_new());
  if (!store) return Error(Code::kInternal, "cannot verify certificates");
  GCR_TRY(control::trust_authority(store.get(), files));
  if (const Status accepted = check_chain(store.get(), certificates); !accepted) {
    return accepted.error().while_doing(
        fmt::format("it was taken by \"{}\", whose certificate is not accepted here", name));
  }
  GCR_TRY(control::check_agent_role(leaf));
  return Signer(Openssl<EVP_PKEY>(X509_get_pubkey(leaf)), std::move(name));
}

bool Signer::has_signed(std::span<const std::byte> bytes,
                        std::span<const std::byte> signature) const {
  const Openssl<EVP_MD_CTX> context(EVP_MD_CTX_new());
  const bool good = key_ && context &&
                    EVP_DigestVerifyInit(context.get(), nullptr, digest_for(key_.get()), nullptr,
                                         key_.get()) == 1 &&
                    EVP_DigestVerify(context.get(), raw(signature), signature.size(), raw(bytes),
                                     bytes.size()) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace gcr::store

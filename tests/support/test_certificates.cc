#include "tests/support/test_certificates.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace gcr::test {
namespace {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("test certificates: ") + what);
}

Key new_key() {
  Key key(EVP_EC_gen("P-256"));
  require(key != nullptr, "no key");
  return key;
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(length)};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_X509(bio.get(), certificate) == 1, "no PEM of a certificate");
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
          "no PEM of a key");
  return text_of(bio.get());
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  require(extension != nullptr, value.c_str());
  require(X509_add_ext(certificate, extension.get(), -1) == 1, "cannot add an extension");
}

constexpr long kHour = 3600;
constexpr long kWeek = 7 * 24 * kHour;

/// A certificate without extensions, valid between these seconds from now.
Certificate new_certificate(const std::string& common_name, EVP_PKEY* key, long from_s,
                            long until_s) {
  Certificate certificate(X509_new());
  require(certificate && X509_set_version(certificate.get(), X509_VERSION_3) == 1, "no X509");
  std::uint64_t serial = 0;
  require(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "no random");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), until_s);
  require(X509_set_pubkey(certificate.get(), key) == 1, "no public key");
  const auto* name = reinterpret_cast<const unsigned char*>(common_name.c_str());
  require(
      common_name.empty() || X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()),
                                                        "CN", MBSTRING_UTF8, name, -1, -1, 0) == 1,
      "no name");
  return certificate;
}

std::string alternative_names(const LeafOptions& options) {
  std::string names;
  std::istringstream roles(options.role);
  for (std::string role; std::getline(roles, role, ',');) names += "URI:gcr:role:" + role + ",";
  if (!options.host.empty()) names += "DNS:" + options.host + ",IP:127.0.0.1,IP:::1,";
  if (!names.empty()) names.pop_back();
  return names;
}

}  // namespace

struct TestAuthority::Impl {
  Key key;
  Certificate certificate;
};

TestAuthority::TestAuthority(const std::string& common_name)
    : TestAuthority(common_name, nullptr) {}

TestAuthority::TestAuthority(const std::string& common_name, const TestAuthority& root)
    : TestAuthority(common_name, root.impl_.get()) {}

TestAuthority::TestAuthority(const std::string& common_name, const Impl* root)
    : impl_(std::make_unique<Impl>()) {
  impl_->key = new_key();
  impl_->certificate = new_certificate(common_name, impl_->key.get(), -2 * kHour, kWeek);
  const Impl& issuer = root != nullptr ? *root : *impl_;
  X509* own = impl_->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(issuer.certificate.get()));
  add_extension(own, issuer.certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  add_extension(own, issuer.certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  require(X509_sign(own, issuer.key.get(), EVP_sha256()) > 0, "cannot sign the authority");
}

TestAuthority::~TestAuthority() = default;

std::string TestAuthority::certificate() const { return pem_of(impl_->certificate.get()); }

PemPair TestAuthority::issue(const LeafOptions& options) const {
  const Key key = new_key();
  const Certificate leaf =
      new_certificate(options.common_name, key.get(), options.not_yet_valid ? kHour : -2 * kHour,
                      options.expired ? -kHour : kWeek);
  X509* issuer = impl_->certificate.get();
  X509_set_issuer_name(leaf.get(), X509_get_subject_name(issuer));
  add_extension(leaf.get(), issuer, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(leaf.get(), issuer, NID_key_usage, "critical,digitalSignature");
  add_extension(leaf.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  const std::string names = alternative_names(options);
  if (!names.empty()) add_extension(leaf.get(), issuer, NID_subject_alt_name, names);
  require(X509_sign(leaf.get(), impl_->key.get(), EVP_sha256()) > 0, "cannot sign a leaf");
  return {.certificate = pem_of(leaf.get()), .key = pem_of(key.get())};
}

std::string TestAuthority::revocation_list(const std::vector<std::string>& certificates,
                                           bool expired) const {
  const std::unique_ptr<X509_CRL, Freer<X509_CRL_free>> list(X509_CRL_new());
  const std::unique_ptr<ASN1_TIME, Freer<ASN1_TIME_free>> made(X509_gmtime_adj(nullptr, -kHour));
  const std::unique_ptr<ASN1_TIME, Freer<ASN1_TIME_free>> next(
      X509_gmtime_adj(nullptr, expired ? -kHour / 2 : kWeek));
  require(X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1, "no CRL");
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(impl_->certificate.get()));
  X509_CRL_set1_lastUpdate(list.get(), made.get());
  X509_CRL_set1_nextUpdate(list.get(), next.get());
  for (const std::string& text : certificates) {
    const Bio bio(BIO_new_mem_buf(text.data(), -1));
    const Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    require(certificate != nullptr, "unreadable PEM");
    X509_REVOKED* entry = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(certificate.get()));
    X509_REVOKED_set_revocationDate(entry, made.get());
    require(X509_CRL_add0_revoked(list.get(), entry) == 1, "cannot revoke");
  }
  require(X509_CRL_sign(list.get(), impl_->key.get(), EVP_sha256()) > 0, "cannot sign a CRL");
  const Bio bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_X509_CRL(bio.get(), list.get()) == 1, "no PEM of a CRL");
  return text_of(bio.get());
}

SslContext make_context(const SSL_METHOD* method, const PemPair& own,
                        const std::string& authority_pem) {
  SslContext context(SSL_CTX_new(method));
  require(context != nullptr, "no context");
  const Bio certificate_text(BIO_new_mem_buf(own.certificate.data(), -1));
  const Bio key_text(BIO_new_mem_buf(own.key.data(), -1));
  const Bio authority_text(BIO_new_mem_buf(authority_pem.data(), -1));
  const Certificate certificate(
      PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const Certificate authority(PEM_read_bio_X509(authority_text.get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  require(certificate && authority && key, "unreadable PEM");
  require(SSL_CTX_use_certificate(context.get(), certificate.get()) == 1, "certificate refused");
  require(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1, "key refused");
  require(X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get()) == 1,
          "authority refused");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

const TestContexts& test_contexts() {
  static const TestContexts contexts;
  return contexts;
}

std::string encrypted(const std::string& key) {
  const Bio plain(BIO_new_mem_buf(key.data(), -1));
  const Key read(PEM_read_bio_PrivateKey(plain.get(), nullptr, nullptr, nullptr));
  const Bio bio(BIO_new(BIO_s_mem()));
  const std::string passphrase = "secret";
  require(read && PEM_write_bio_PKCS8PrivateKey(
                      bio.get(), read.get(), EVP_aes_256_cbc(), passphrase.data(),
                      static_cast<int>(passphrase.size()), nullptr, nullptr) == 1,
          "cannot encrypt a key");
  return text_of(bio.get());
}

void write_private_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fd >= 0, path.c_str());
  const bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  require(whole, path.c_str());
}

}  // namespace gcr::test

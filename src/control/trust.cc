#include "src/control/trust.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gcr::control {
namespace {

/// Fails and records that OpenSSL asked for a passphrase, which it does only for an encrypted key.
int note_and_fail(char*, int, int, void* wanted) {
  *static_cast<bool*>(wanted) = true;
  return -1;
}

}  // namespace

int no_passphrase(char*, int, int, void*) { return -1; }

Result<Openssl<EVP_PKEY>> read_private_key(const std::string& path) {
  ERR_clear_error();
  const Openssl<BIO> file(BIO_new_file(path.c_str(), "r"));
  bool encrypted = false;
  Openssl<EVP_PKEY> key(
      file ? PEM_read_bio_PrivateKey(file.get(), nullptr, note_and_fail, &encrypted) : nullptr);
  if (key) return key;
  if (!encrypted) return unusable_file("private key", path);
  ERR_clear_error();
  return Error(Code::kInvalidArgument,
               fmt::format("the private key {} is encrypted, and gcr-migrate never asks for a "
                           "passphrase: use an unencrypted key in a file of mode 600 (openssl pkey "
                           "-in {} -out NEW)",
                           path, path));
}

Status trust_authority(X509_STORE* store, const TlsFiles& files) {
  ERR_clear_error();
  if (X509_STORE_load_file(store, files.authority.c_str()) != 1) {
    return unusable_file("authority's certificate", files.authority);
  }
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  if (files.revoked.empty()) return {};
  X509_LOOKUP* lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
  if (lookup == nullptr ||
      X509_load_crl_file(lookup, files.revoked.c_str(), X509_FILETYPE_PEM) < 1) {
    return unusable_file("list of revoked certificates", files.revoked);
  }
  // Only the leaf of the shown chain is looked up in the list.
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  return {};
}

Error unusable_file(std::string_view what, const std::string& path) {
  if (::access(path.c_str(), R_OK) != 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("cannot read the {} {}: {}; scripts/make-certs makes certificates",
                             what, path, std::generic_category().message(errno)));
  }
  return Error(Code::kInvalidArgument,
               fmt::format("cannot use the {} {}: {}", what, path, openssl_reason()));
}

std::string openssl_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown reason";
}

}  // namespace gcr::control

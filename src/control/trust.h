// The files of TlsFiles as OpenSSL takes them, the same way for TLS and for the signatures of
// checkpoints. Nothing here asks for a passphrase. Any thread. No Asio.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509_vfy.h>

#include <memory>
#include <string>
#include <string_view>

#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::control {

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using PrivateKey = std::unique_ptr<EVP_PKEY, FreeKey>;

/// A pem_password_cb that knows no passphrase. OpenSSL's own asks on the terminal.
int know_no_passphrase(char* buffer, int size, int for_writing, void* data);

/// The key in a PEM file. kInvalidArgument, naming the file, if it cannot be read or is encrypted.
Result<PrivateKey> read_private_key(const std::string& path);

/// From now on `store` trusts the certificates in the authority's file, each for itself: an issuing
/// authority needs no root. Where `revoked` is set, a certificate also has to be good by that list.
/// kInvalidArgument, naming the file, if one cannot be read.
Status trust_authority(X509_STORE* store, const TlsFiles& files);

/// kInvalidArgument: why `path` cannot be used as `what`, by errno or the last entry of this
/// thread's OpenSSL error queue, which is emptied.
Error unusable_file(std::string_view what, const std::string& path);

/// That entry; the queue is emptied.
std::string openssl_reason();

}  // namespace gcr::control

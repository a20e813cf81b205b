// Loads the files of TlsFiles into OpenSSL, in the same way for TLS and for the signatures of
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

/// A pem_password_cb that always fails. OpenSSL's default asks on the terminal.
int no_passphrase(char* buffer, int size, int for_writing, void* data);

/// Reads the key in a PEM file. kInvalidArgument, naming the file, if it cannot be read or is
/// encrypted.
Result<PrivateKey> read_private_key(const std::string& path);

/// Makes `store` trust each certificate in the authority's file by itself: an intermediate
/// authority needs no root. If `revoked` is set, certificates on that list are refused.
/// kInvalidArgument, naming the file, if one cannot be read.
Status trust_authority(X509_STORE* store, const TlsFiles& files);

/// Returns kInvalidArgument with the reason why `path` cannot be used as `what`, from errno or from
/// the last entry of this thread's OpenSSL error queue. Empties the queue.
Error unusable_file(std::string_view what, const std::string& path);

/// Returns the text of the last entry of this thread's OpenSSL error queue, and empties the queue.
std::string openssl_reason();

}  // namespace gcr::control

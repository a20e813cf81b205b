// Owners of OpenSSL objects. Loads the files of TlsFiles into OpenSSL, in the same way for TLS and
// for the signatures of checkpoints. Nothing here asks for a passphrase. Any thread. No Asio.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::control {

struct FreeOpenssl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_CRL* list) const { X509_CRL_free(list); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }  ///< not what is in it
};

/// Owns an OpenSSL object.
template <class T>
using Openssl = std::unique_ptr<T, FreeOpenssl>;

/// A pem_password_cb that always fails. OpenSSL's default asks on the terminal.
int no_passphrase(char* buffer, int size, int for_writing, void* data);

/// Reads the key in a PEM file. kInvalidArgument, naming the file, if it cannot be read or is
/// encrypted.
Result<Openssl<EVP_PKEY>> read_private_key(const std::string& path);

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

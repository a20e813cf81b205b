// Certificates for tests, created in memory with OpenSSL: an authority, and leaves with a role.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

namespace gcr::test {

struct FreeSslContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSslContext>;

/// A certificate and its private key, both as PEM text.
struct PemPair {
  std::string certificate;
  std::string key;
};

struct LeafOptions {
  std::string role = "agent";        ///< becomes the URI gcr:role:<role>; empty: no URI
  std::string common_name = "test";  ///< the subject's CN; empty: none
  std::string host = "localhost";    ///< a DNS name; 127.0.0.1 and ::1 are added; empty: none
  bool expired = false;              ///< the validity ended an hour ago instead of next week
  bool not_yet_valid = false;        ///< it begins in an hour
};

/// A certificate authority that lives as long as the test. Throws std::runtime_error if OpenSSL
/// fails: a test cannot continue without it.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& common_name = "test authority");
  /// One that another has certified.
  TestAuthority(const std::string& common_name, const TestAuthority& root);
  ~TestAuthority();

  /// The authority's own certificate, as PEM text.
  std::string certificate() const;

  /// A new key and a certificate for it, valid for client and server. A role may be several,
  /// separated by commas.
  PemPair issue(const LeafOptions& options = {}) const;

  /// A list, as PEM text, that revokes these certificates (PEM text); issued an hour ago, valid for
  /// a week or, if `expired`, until now.
  std::string revocation_list(const std::vector<std::string>& certificates,
                              bool expired = false) const;

 private:
  struct Impl;
  TestAuthority(const std::string& common_name, const Impl* root);
  std::unique_ptr<Impl> impl_;
};

/// A context with `own` as certificate, that verifies its peer against `authority_pem`, TLS 1.3
/// only. `method` is TLS_client_method() or TLS_server_method().
SslContext make_context(const SSL_METHOD* method, const PemPair& own,
                        const std::string& authority_pem);

/// Contexts of one authority, and a client of another authority.
struct TestContexts {
  TestAuthority authority;
  TestAuthority stranger{"another authority"};
  SslContext server = make_context(TLS_server_method(), authority.issue(), authority.certificate());
  SslContext client = make_context(TLS_client_method(), authority.issue(), authority.certificate());
  SslContext strange_client =
      make_context(TLS_client_method(), stranger.issue(), authority.certificate());
};

/// Created at the first call; they live as long as the program.
const TestContexts& test_contexts();

/// A private key, as PEM text that needs a passphrase.
std::string encrypted(const std::string& key);

/// Writes `text` to `path` with mode 0600.
void write_private_file(const std::string& path, const std::string& text);

}  // namespace gcr::test

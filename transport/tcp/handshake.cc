// The TLS part of a Stream. OpenSSL performs the handshake. Its keys then go to the kernel, if that
// has TLS (CONFIG_TLS) and the cipher; otherwise records.h encrypts in this process.
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "transport/tcp/stream.h"

namespace gcr::transport {
namespace {

// RFC 5705: labels that begin with EXPERIMENTAL need no registration.
constexpr std::string_view kBindingLabel = "EXPERIMENTAL gcr-migrate transfer";

// AES-128-GCM first: with AES instructions it is the fastest, and as strong as the handshake.
constexpr const char* kCipherSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

/// Blocks SIGPIPE in this thread while it lives, because OpenSSL writes to sockets with write(2).
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeGuard() {
    const timespec at_once{};
    while (sigtimedwait(&sigpipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
};

// Reasons of alerts, and of errors of this side, that are about a certificate.
constexpr int kAboutCertificates[] = {
    SSL_R_CERTIFICATE_VERIFY_FAILED,           SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
    SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,         SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
    SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED,     SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN,
    SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, SSL_R_TLSV1_ALERT_UNKNOWN_CA,
    SSL_R_TLSV1_ALERT_ACCESS_DENIED,           SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED};

// The only place where OpenSSL's errors are converted.
Error handshake_error(SSL* ssl, int result) {
  const int errno_value = errno;
  const std::string what = "TLS handshake of a data connection";
  switch (SSL_get_error(ssl, result)) {
    case SSL_ERROR_ZERO_RETURN:
      return Stream::ended();
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Stream::socket_error(EAGAIN, what);
    case SSL_ERROR_SYSCALL:
      return errno_value == 0 ? Stream::ended() : Stream::socket_error(errno_value, what);
    default:
      break;
  }
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return Stream::ended();
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict != X509_V_OK) {
    return Error(Code::kPermissionDenied, what + ": the peer's certificate is not valid: " +
                                              X509_verify_cert_error_string(verdict));
  }
  const char* text = ERR_reason_error_string(code);
  const bool about_certificate = std::ranges::count(kAboutCertificates, reason) > 0;
  return Error(about_certificate ? Code::kPermissionDenied : Code::kProtocol,
               what + ": " + (text != nullptr ? text : "unknown TLS error"));
}

/// Authenticates both ends and agrees on keys. The server then sends one byte when it has accepted
/// the client's certificate, because a TLS 1.3 client does not learn that otherwise. OpenSSL reads
/// record by record from the socket, so it never consumes bytes after the handshake.
Status make_handshake(SSL* ssl, Stream::Side side) {
  const SigpipeGuard guard;
  ERR_clear_error();
  errno = 0;
  const bool client = side == Stream::Side::kClient;
  std::byte good{1};
  std::size_t count = 0;
  int result = client ? SSL_connect(ssl) : SSL_accept(ssl);
  if (result == 1) {
    result = client ? SSL_read_ex(ssl, &good, sizeof good, &count)
                    : SSL_write_ex(ssl, &good, sizeof good, &count);
  }
  if (result != 1) return handshake_error(ssl, result);
  return {};
}

/// Gives the key of `direction` to the kernel; its first record has the number 0. `Info` is the
/// kernel's type for the cipher.
template <class Info>
bool hand_over(int socket, int direction, std::uint16_t cipher, const RecordKey& key) {
  Info info{};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = cipher;
  std::copy_n(key.key.data(), sizeof info.key, info.key);
  std::copy_n(key.nonce.data(), sizeof info.salt, info.salt);
  std::copy_n(key.nonce.data() + sizeof info.salt, sizeof info.iv, info.iv);
  const bool taken = ::setsockopt(socket, SOL_TLS, direction, &info, sizeof info) == 0;
  OPENSSL_cleanse(&info, sizeof info);
  return taken;
}

/// Makes the kernel encrypt (TLS_TX) or decrypt (TLS_RX) this `direction` of the socket from now
/// on. Returns false and changes nothing if the kernel has no TLS, or does not support the cipher.
Result<bool> enable_kernel_tls(int socket, int direction, const TrafficSecret& secret) {
  // Fails if the other direction has enabled TLS already; the next call reports real failures.
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls");
  GCR_ASSIGN(const RecordKey key, secret.key());
  switch (EVP_CIPHER_get_nid(secret.cipher())) {
    case NID_aes_128_gcm:
      return hand_over<tls12_crypto_info_aes_gcm_128>(socket, direction, TLS_CIPHER_AES_GCM_128,
                                                      key);
    case NID_aes_256_gcm:
      return hand_over<tls12_crypto_info_aes_gcm_256>(socket, direction, TLS_CIPHER_AES_GCM_256,
                                                      key);
    default:
      return false;
  }
}

}  // namespace

Status Stream::start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer,
                         const Uuid& transfer) {
  usable_ = false;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context), SSL_free);
  if (!ssl || SSL_set_fd(ssl.get(), socket_.get()) != 1 ||
      SSL_set_min_proto_version(ssl.get(), TLS1_3_VERSION) != 1 ||
      SSL_set_ciphersuites(ssl.get(), kCipherSuites) != 1 ||
      SSL_set_num_tickets(ssl.get(), 0) != 1) {
    return Error(Code::kInternal, "OpenSSL cannot prepare a data connection");
  }
  SSL_set_verify(ssl.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_set_mode(ssl.get(), SSL_MODE_AUTO_RETRY);
  SSL_set_read_ahead(ssl.get(), 0);
  GCR_TRY(make_handshake(ssl.get(), side));
  Binding& binding = binding_.emplace();
  if (SSL_export_keying_material(ssl.get(), binding.data(), binding.size(), kBindingLabel.data(),
                                 kBindingLabel.size(), transfer.bytes.data(), transfer.bytes.size(),
                                 1) != 1) {
    return Error(Code::kInternal, "OpenSSL cannot bind a data connection to its transfer");
  }
  GCR_TRY(protect(ssl.get(), side));
  usable_ = true;
  return verify_peer(ssl.get());
}

/// Installs the keys in the kernel, or else in the record layer of this process.
Status Stream::protect(SSL* ssl, Side side) {
  using From = TrafficSecret::From;
  const bool client = side == Side::kClient;
  GCR_ASSIGN(const TrafficSecret ours,
             TrafficSecret::export_from(ssl, client ? From::kClient : From::kServer));
  GCR_ASSIGN(const TrafficSecret theirs,
             TrafficSecret::export_from(ssl, client ? From::kServer : From::kClient));
  GCR_ASSIGN(kernel_seals_, enable_kernel_tls(socket_.get(), TLS_TX, ours));
  GCR_ASSIGN(kernel_opens_, enable_kernel_tls(socket_.get(), TLS_RX, theirs));
  if (!kernel_seals_) {
    GCR_ASSIGN(sealer_, RecordSealer::create(ours));
  }
  if (kernel_opens_) {
    // Our peers never pad, so the kernel may decrypt straight into place. Before Linux 6.0 it
    // copies.
    const int yes = 1;
    (void)::setsockopt(socket_.get(), SOL_TLS, TLS_RX_EXPECT_NO_PAD, &yes, sizeof yes);
  } else {
    GCR_ASSIGN(opener_, RecordOpener::create(theirs));
  }
  return {};
}

/// Under TLS, the proof is HMAC-SHA256 of the binding with the token as key.
std::string Stream::token_proof(const std::string& token) const {
  if (!binding_) return token;
  std::string proof(SHA256_DIGEST_LENGTH, '\0');
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), binding_->data(),
       binding_->size(), reinterpret_cast<unsigned char*>(proof.data()), nullptr);
  return proof;
}

}  // namespace gcr::transport

#include "transport/tcp/stream.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

namespace gcr::transport {
namespace {

// AES-128-GCM first: with AES instructions it is the fastest, and as strong as the handshake.
constexpr const char* kCipherSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

/// Keeps SIGPIPE from this thread while it lives: OpenSSL writes to sockets with write(2).
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigset_t pending;
    sigpending(&pending);
    active_ = sigismember(&pending, SIGPIPE) == 0;
    if (!active_) return;
    sigset_t set = only_sigpipe();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~SigpipeGuard() {
    if (!active_) return;
    const int saved_errno = errno;
    const sigset_t set = only_sigpipe();
    const timespec at_once{};
    while (sigtimedwait(&set, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved_errno;
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  static sigset_t only_sigpipe() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
  }

  sigset_t before_;
  bool active_ = false;
};

/// errno after a failed call on the socket of a lane.
Error socket_error(int errno_value, std::string_view doing) {
  if (errno_value == EAGAIN || errno_value == EWOULDBLOCK) {
    return Error(Code::kTimeout, std::string(doing) + ": the peer does not answer");
  }
  if (errno_value == ETIMEDOUT) {
    return Error(Code::kUnavailable, std::string(doing) + ": the peer has vanished");
  }
  return Error::from_errno(errno_value, doing);
}

Error ended() { return Error(Code::kUnavailable, "the peer closed the data connection"); }

/// Whether `reason` is an alert, or a verdict of ours, about a certificate.
bool about_certificate(int reason) {
  switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status Stream::start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer) {
  ssl_.reset(SSL_new(context));
  first_record_ = std::make_unique<std::array<std::byte, SSL3_RT_MAX_PLAIN_LENGTH>>();
  if (!ssl_ || SSL_set_fd(ssl_.get(), socket_.get()) != 1 ||
      SSL_set_min_proto_version(ssl_.get(), TLS1_3_VERSION) != 1 ||
      SSL_set_ciphersuites(ssl_.get(), kCipherSuites) != 1 ||
      SSL_set_num_tickets(ssl_.get(), 0) != 1) {
    return Error(Code::kInternal, "OpenSSL cannot prepare a data connection");
  }
  SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_set_mode(ssl_.get(), SSL_MODE_AUTO_RETRY);
  SSL_set_read_ahead(ssl_.get(), 1);
  const SigpipeGuard guard;
  ERR_clear_error();
  errno = 0;
  const int result = side == Side::kClient ? SSL_connect(ssl_.get()) : SSL_accept(ssl_.get());
  if (result != 1) return tls_error(result, Doing::kHandshake);
  return verify_peer(ssl_.get());
}

// The one place where OpenSSL's errors become ours.
Error Stream::tls_error(int result, Doing doing) const {
  const int errno_value = errno;
  static constexpr std::array<const char*, 3> kDoing = {"TLS handshake of a data connection",
                                                        "sending data", "receiving data"};
  const std::string what = kDoing[static_cast<std::size_t>(doing)];
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_ZERO_RETURN:
      return ended();
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return socket_error(EAGAIN, what);
    case SSL_ERROR_SYSCALL:
      return errno_value == 0 ? ended() : socket_error(errno_value, what);
    default:
      break;
  }
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return ended();
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (doing == Doing::kHandshake && verdict != X509_V_OK) {
    return Error(Code::kPermissionDenied, what + ": the peer's certificate does not hold: " +
                                              X509_verify_cert_error_string(verdict));
  }
  const char* text = ERR_reason_error_string(code);
  return Error(about_certificate(reason) ? Code::kPermissionDenied : Code::kProtocol,
               what + ": " + (text != nullptr ? text : "unknown TLS error"));
}

Status Stream::send_tls(std::span<const std::byte> bytes) {
  const SigpipeGuard guard;
  for (;;) {
    ERR_clear_error();
    errno = 0;
    std::size_t written = 0;
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
    if (result == 1) return {};
    if (errno == EINTR) continue;  // the same call again, as OpenSSL demands
    return tls_error(result, Doing::kSend);
  }
}

Status Stream::receive_tls(std::span<std::byte> bytes) {
  const SigpipeGuard guard;  // reading can write: an alert
  while (!bytes.empty()) {
    ERR_clear_error();
    errno = 0;
    std::size_t count = 0;
    const int result = SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
    if (result == 1) {
      bytes = bytes.subspan(count);
    } else if (errno != EINTR) {
      return tls_error(result, Doing::kReceive);
    }
  }
  return {};
}

Status Stream::send(std::span<const std::byte> bytes) {
  if (ssl_) return send_tls(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "sending data");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::send(const HeaderBytes& header, std::span<const std::byte> payload) {
  if (ssl_) {
    const std::size_t first = std::min(payload.size(), first_record_->size() - header.size());
    std::memcpy(first_record_->data(), header.data(), header.size());
    if (first > 0) std::memcpy(first_record_->data() + header.size(), payload.data(), first);
    GCR_TRY(send_tls(std::span(*first_record_).first(header.size() + first)));
    payload = payload.subspan(first);
    return payload.empty() ? Status{} : send_tls(payload);
  }
  std::array<iovec, 2> parts = {
      iovec{const_cast<std::byte*>(header.data()), header.size()},
      iovec{const_cast<std::byte*>(payload.data()), payload.size()},
  };
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return socket_error(errno, "sending data");
  const auto sent = static_cast<std::size_t>(count);
  if (sent < header.size()) {
    GCR_TRY(send(std::span(header).subspan(sent)));
    return send(payload);
  }
  return send(payload.subspan(sent - header.size()));
}

Status Stream::receive(std::span<std::byte> bytes) {
  if (ssl_) return receive_tls(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "receiving data");
    if (count == 0) return ended();
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

bool Stream::readable() const {
  if (ssl_ && SSL_has_pending(ssl_.get()) == 1) return true;
  pollfd entry{socket_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

Status Stream::wait_readable() const {
  pollfd entry{socket_.get(), POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, "waiting for data");
  }
  return {};
}

Status Stream::rekey() {
  if (ssl_ && SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
    return Error(Code::kInternal, "OpenSSL cannot change the key of a data connection");
  }
  return {};
}

}  // namespace gcr::transport

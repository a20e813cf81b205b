#include "transport/tcp/stream.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "transport/tcp/kernel_tls.h"

namespace gcr::transport {
namespace {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

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
  if (errno_value == EBADMSG) {  // the kernel's TLS
    return Error(Code::kProtocol, std::string(doing) + ": a record is not what the peer sealed");
  }
  if (errno_value == EIO) {  // the kernel's TLS, which cannot change its key
    return Error(Code::kUnavailable,
                 std::string(doing) + ": kernel TLS cannot process a KeyUpdate");
  }
  if (errno_value == ETIMEDOUT) {
    return Error(Code::kUnavailable, std::string(doing) + ": the peer has vanished");
  }
  return Error::from_errno(errno_value, doing);
}

Error no_keys() {
  return Error(Code::kUnavailable, "the TLS handshake of a data connection has not succeeded");
}

Error ended() { return Error(Code::kUnavailable, "the peer closed the data connection"); }

/// Whether `reason` is an alert, or an error of this side, about a certificate.
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

// The only place where OpenSSL's errors are converted.
Error handshake_error(SSL* ssl, int result) {
  const int errno_value = errno;
  const std::string what = "TLS handshake of a data connection";
  switch (SSL_get_error(ssl, result)) {
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
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict != X509_V_OK) {
    return Error(Code::kPermissionDenied, what + ": the peer's certificate does not hold: " +
                                              X509_verify_cert_error_string(verdict));
  }
  const char* text = ERR_reason_error_string(code);
  return Error(about_certificate(reason) ? Code::kPermissionDenied : Code::kProtocol,
               what + ": " + (text != nullptr ? text : "unknown TLS error"));
}

/// Both ends prove who they are and agree on keys. One byte from the server then tells the client
/// that the server has accepted its certificate: in TLS 1.3, a client does not learn it
/// otherwise. OpenSSL takes record by record from the socket, so that nothing that follows is lost.
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

}  // namespace

Status Stream::start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer,
                         const Uuid& transfer) {
  usable_ = false;
  const std::unique_ptr<SSL, FreeSsl> ssl(SSL_new(context));
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
  GCR_ASSIGN(binding_, export_binding(ssl.get(), transfer));
  GCR_TRY(protect(ssl.get(), side));
  usable_ = true;
  return verify_peer(ssl.get());
}

/// Hands the keys to the kernel, or else to the records.
Status Stream::protect(SSL* ssl, Side side) {
  using From = TrafficSecret::From;
  const bool client = side == Side::kClient;
  GCR_ASSIGN(const TrafficSecret ours,
             TrafficSecret::export_from(ssl, client ? From::kClient : From::kServer));
  GCR_ASSIGN(const TrafficSecret theirs,
             TrafficSecret::export_from(ssl, client ? From::kServer : From::kClient));
  GCR_ASSIGN(kernel_seals_, let_kernel_seal(socket_.get(), ours));
  GCR_ASSIGN(kernel_opens_, let_kernel_open(socket_.get(), theirs));
  if (!kernel_seals_) {
    GCR_ASSIGN(sealer_, RecordSealer::create(ours));
  }
  if (!kernel_opens_) {
    GCR_ASSIGN(opener_, RecordOpener::create(theirs));
  }
  return {};
}

Status Stream::send(std::span<const std::byte> bytes) {
  if (!usable_) return no_keys();
  return sealer_ ? send_records(bytes, {}) : send_to_socket(bytes);
}

Status Stream::send(const HeaderBytes& header, std::span<const std::byte> payload) {
  if (!usable_) return no_keys();
  if (sealer_) return send_records(header, payload);
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
    GCR_TRY(send_to_socket(std::span(header).subspan(sent)));
    return send_to_socket(payload);
  }
  return send_to_socket(payload.subspan(sent - header.size()));
}

Status Stream::send_to_socket(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "sending data");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::send_records(std::span<const std::byte> first, std::span<const std::byte> second) {
  // A large payload gets records of its own: the receiver opens them straight into place.
  std::span<const std::byte> none;
  const bool apart = second.size() >= kMaxRecordContentBytes;
  while (apart && !first.empty()) GCR_TRY(sealer_->add(first, none));
  while (!first.empty() || !second.empty()) {
    if (sealer_->full()) GCR_TRY(send_sealed());
    GCR_TRY(sealer_->add(first, second));
  }
  return send_sealed();
}

Status Stream::send_sealed() {
  const Status sent = send_to_socket(sealer_->sealed());
  sealer_->clear();
  return sent;
}

Status Stream::receive(std::span<std::byte> bytes) {
  if (!usable_) return no_keys();
  if (opener_) return receive_records(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "receiving data");
    if (count == 0) return ended();
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::receive_records(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    GCR_ASSIGN(const std::size_t opened, opener_->open(bytes));
    bytes = bytes.subspan(opened);
    if (opened > 0) continue;
    const std::span<std::byte> room = opener_->room();
    const ssize_t count = ::recv(socket_.get(), room.data(), room.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "receiving data");
    if (count == 0) return ended();
    opener_->add(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::rekey() {
  if (kernel_seals_) {
    return Error(Code::kUnavailable, "the kernel's TLS cannot change the key of a connection");
  }
  if (!sealer_) return {};
  GCR_TRY(sealer_->add_update());
  return send_sealed();
}

}  // namespace gcr::transport

#include "src/control/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>

#include <cctype>

#include "src/control/control_channel.h"
#include "src/control/trust.h"

namespace gcr::control {
namespace {

Error no_certificate() { return Error(Code::kPermissionDenied, "the peer shows no certificate"); }

Status configure(SSL_CTX* context, const TlsFiles& files) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  // Sessions are never resumed: every connection proves its certificate again.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  GCR_TRY(trust_authority(SSL_CTX_get_cert_store(context), files));
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return unusable_file("certificate", files.certificate);
  }
  GCR_ASSIGN(const auto key, read_private_key(files.key));
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return unusable_file("private key", files.key);
  }
  return {};
}

/// Returns the remedy for a peer's certificate that failed our verification.
std::string_view verification_advice(long result) {
  switch (result) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "it is made out to another host: make one that names this host or address, or use "
             "the name that it carries";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "make a new one there (scripts/make-certs), or check this host's clock";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "check both hosts' clocks";
    case X509_V_ERR_CERT_REVOKED:
      return "if that is a mistake, have the authority make a new one";
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
      return "this side has no valid list of revoked certificates and accepts no "
             "peer: renew the file that tls.revoked or --crl names";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return "both sides need certificates of one authority; if an intermediate authority "
             "issued one, append its certificate to the one that is shown, or to this side's ca "
             "file";
    default:
      return "both sides need certificates of one authority";
  }
}

/// Returns the remedy for our certificate, which the peer refused with this alert; empty if
/// `reason` is no such alert.
std::string_view alert_advice(int reason) {
  switch (reason) {
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it has expired, or the peer's list of revoked certificates has: "
             "make a new one (scripts/make-certs), or check that host's clock";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it is revoked: if that is a mistake, have the authority make a new one";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      return "it is not valid yet, or not made out to the name under which this side was reached: "
             "check both hosts' clocks, or make a new one (scripts/make-certs)";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:  // an authority of the same name with another key
      return "both sides need certificates of one authority and, where lists of revoked "
             "certificates are used, lists that have not expired";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "both sides need certificates of one authority; the other side's log says more";
    default:
      return "";
  }
}

/// Returns whether the two sides support no common version of TLS.
bool is_too_old(int reason) {
  return reason == SSL_R_UNSUPPORTED_PROTOCOL || reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION ||
         reason == SSL_R_WRONG_SSL_VERSION;
}

Error ssl_error(SSL* ssl, const std::error_code& error, std::string_view peer) {
  const long verified = SSL_get_verify_result(ssl);
  if (verified != X509_V_OK) {
    return Error(
        Code::kPermissionDenied,
        fmt::format("the certificate of {} is not accepted here: {}; {}", peer,
                    X509_verify_cert_error_string(verified), verification_advice(verified)));
  }
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Error(Code::kPermissionDenied,
                 fmt::format("{} shows no certificate; it needs one of this side's authority "
                             "(scripts/make-certs)",
                             peer));
  }
  if (is_too_old(reason)) {
    return Error(
        Code::kPermissionDenied,
        fmt::format("{} does not support TLS 1.3, the oldest version accepted ({}): update its "
                    "software",
                    peer, error.message()));
  }
  if (const std::string_view advice = alert_advice(reason); !advice.empty()) {
    return Error(Code::kPermissionDenied,
                 fmt::format("{} does not accept the certificate of this side ({}); {}", peer,
                             error.message(), advice));
  }
  return Error(Code::kProtocol, fmt::format("TLS with {} failed: {}", peer, error.message()));
}

}  // namespace

Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const TlsFiles& files) {
  std::shared_ptr<asio::ssl::context> context;
  try {
    context = std::make_shared<asio::ssl::context>(asio::ssl::context::tlsv13);
  } catch (const std::system_error& error) {
    return Error(Code::kInternal, std::string("cannot set up TLS: ") + error.what());
  }
  GCR_TRY(configure(context->native_handle(), files));
  return context;
}

Result<PeerIdentity> peer_identity(SSL* ssl) {
  const Openssl<X509> certificate(SSL_get1_peer_certificate(ssl));
  if (!certificate) return no_certificate();
  return identity_of(certificate.get());
}

Result<PeerIdentity> own_identity(SSL_CTX* context) {
  const X509* const certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr) return Error(Code::kInvalidArgument, "there is no certificate");
  return identity_of(certificate);
}

Status verify_agent(SSL* ssl, const std::string& host) {
  const Openssl<X509> certificate(SSL_get1_peer_certificate(ssl));
  return certificate ? check_agent_role(certificate.get(), host) : no_certificate();
}

Status expect_host(SSL* ssl, const std::string& host) {
  X509_VERIFY_PARAM* parameters = SSL_get0_param(ssl);
  const int done = is_address(host)
                       ? X509_VERIFY_PARAM_set1_ip_asc(parameters, host.c_str())
                       : X509_VERIFY_PARAM_set1_host(parameters, host.data(), host.size());
  if (done == 1) return {};
  return Error(Code::kInvalidArgument, fmt::format("{} is not a valid host name for TLS", host));
}

Error stream_error(SSL* ssl, const std::error_code& error, std::string_view peer) {
  if (error.category() == asio::error::get_ssl_category()) return ssl_error(ssl, error, peer);
  if (error == asio::error::eof || error == asio::ssl::error::stream_truncated) {
    return Error(Code::kUnavailable, fmt::format("{} closed the connection", peer));
  }
  if (error == asio::error::operation_aborted) {
    return Error(Code::kCancelled, fmt::format("the connection with {} was closed here", peer));
  }
  std::string text = fmt::format("the connection with {} is lost: {}", peer, reason_of(error));
  if (error == asio::error::timed_out) {
    text += fmt::format(", its host has not acknowledged what was sent: {}", kUnacknowledged);
  }
  return Error(Code::kUnavailable, std::move(text));
}

std::string reason_of(const std::error_code& error) {
  std::string text = error.message();
  if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])) != 0) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

}  // namespace gcr::control

#include "migrate-agent/worker/config/certificates.h"

#include <fmt/format.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <ctime>
#include <optional>

#include "src/control/control_channel.h"
#include "src/control/trust.h"

namespace gcr::worker {
namespace {

using control::Openssl;

std::optional<double> seconds_of(const ASN1_TIME* time) {
  std::tm utc{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &utc) != 1) return std::nullopt;
  return static_cast<double>(::timegm(&utc));
}

/// Reads the first object in a PEM file; null if there is none.
template <class T>
Openssl<T> read_pem(const std::string& path, T* (*read)(BIO*, T**, pem_password_cb*, void*)) {
  const Openssl<BIO> file(BIO_new_file(path.c_str(), "r"));
  return Openssl<T>(file ? read(file.get(), nullptr, control::no_passphrase, nullptr) : nullptr);
}

std::optional<double> end_of_certificate(const std::string& path) {
  const auto certificate = read_pem<X509>(path, PEM_read_bio_X509);
  return certificate ? seconds_of(X509_get0_notAfter(certificate.get())) : std::nullopt;
}

std::optional<double> end_of_revocations(const std::string& path) {
  const auto list = read_pem<X509_CRL>(path, PEM_read_bio_X509_CRL);
  return list ? seconds_of(X509_CRL_get0_nextUpdate(list.get())) : std::nullopt;
}

}  // namespace

Status check_own_certificate(const control::TlsFiles& files, const std::string& host) {
  GCR_ASSIGN(const auto context, control::make_tls_context(files));
  SSL_CTX* tls = context->native_handle();
  X509* certificate = SSL_CTX_get0_certificate(tls);
  const Openssl<X509_STORE_CTX> verification(X509_STORE_CTX_new());
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(tls, &chain);
  if (!verification || X509_STORE_CTX_init(verification.get(), SSL_CTX_get_cert_store(tls),
                                           certificate, chain) != 1) {
    return Error(Code::kInternal, "cannot verify certificates");
  }
  if (X509_verify_cert(verification.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(verification.get());
    return Error(Code::kPermissionDenied,
                 fmt::format("the certificate {} is not valid: {}", files.certificate,
                             X509_verify_cert_error_string(error)));
  }
  const Status agent = control::check_agent_role(certificate, host);
  if (!agent) return agent.error().while_doing("peers would refuse " + files.certificate);
  return {};
}

std::map<std::string, double> certificate_expiry(const control::TlsFiles& files) {
  std::map<std::string, double> ends;
  if (const auto end = end_of_certificate(files.authority)) ends["authority"] = *end;
  if (const auto end = end_of_certificate(files.certificate)) ends["agent"] = *end;
  if (files.revoked.empty()) return ends;
  if (const auto end = end_of_revocations(files.revoked)) ends["revocations"] = *end;
  return ends;
}

Status check_peer(const std::vector<std::string>& peers, const std::string& self,
                  const std::string& agent, std::string_view what) {
  if (peers.empty() || (agent == self && !self.empty()) || std::ranges::count(peers, agent) > 0)
    return {};
  return Error(
      Code::kPermissionDenied,
      fmt::format("this agent accepts no {} of the agent \"{}\": no [[peers]] table of its "
                  "configuration names it",
                  what, agent));
}

}  // namespace gcr::worker

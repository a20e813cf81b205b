#include "src/control/identity.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <string_view>

#include "src/control/trust.h"
#include "src/control/wire.h"

namespace gcr::control {
namespace {

constexpr std::string_view kAgentRole = "gcr:role:agent";
constexpr std::string_view kOperatorRole = "gcr:role:operator";

}  // namespace

std::string common_name(const X509* certificate) {
  std::array<char, 256> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return printable(name.data());
}

Result<PeerIdentity> identity_of(const X509* certificate) {
  PeerIdentity identity;
  identity.common_name = common_name(certificate);
  if (identity.common_name.empty()) {
    return Error(Code::kPermissionDenied, "the peer's certificate has no common name");
  }
  const Openssl<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    const std::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                static_cast<std::size_t>(ASN1_STRING_length(uri)));
    if (text == kAgentRole) identity.is_agent = true;
    if (text == kOperatorRole) identity.is_operator = true;
  }
  return identity;
}

Status check_agent_role(X509* certificate, const std::string& host) {
  GCR_ASSIGN(const PeerIdentity identity, identity_of(certificate));
  if (!identity.is_agent) {
    return Error(Code::kPermissionDenied,
                 fmt::format("the certificate of \"{}\" is not an agent's (it lacks {})",
                             identity.common_name, kAgentRole));
  }
  if (host.empty()) return {};
  const int matches = is_address(host)
                          ? X509_check_ip_asc(certificate, host.c_str(), 0)
                          : X509_check_host(certificate, host.data(), host.size(), 0, nullptr);
  if (matches == 1) return {};
  return Error(Code::kPermissionDenied,
               fmt::format("the certificate of \"{}\" is not made out to {}", identity.common_name,
                           printable(host)));
}

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> parsed{};
  return inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}

}  // namespace gcr::control

// Files with the certificates that an agent or an operator shows and trusts.
#pragma once

#include <string>

namespace gcr::control {

/// Paths of PEM files.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
  std::string
      revoked{};  ///< a CRL of the authority; empty: certificates are not checked for revocation
};

}  // namespace gcr::control

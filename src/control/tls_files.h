// What an agent or an operator shows and trusts.
#pragma once

#include <string>

namespace gcr::control {

/// Paths of PEM files.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
  std::string revoked{};  ///< a CRL of the authority's; empty: certificates are not revoked
};

}  // namespace gcr::control

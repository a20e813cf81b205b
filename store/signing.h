// Signatures of agents, verified with a certificate of the authority.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/control/trust.h"

namespace gcr::store {

inline constexpr std::uint64_t kMaxChainBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSignatureBytes = 4 * 1024;

/// Decides whether signatures of the agent with that common name are accepted; the error is the
/// reason. An empty rule accepts every agent of the authority.
using SignerRule = std::function<Status(const std::string& agent)>;

struct Signed {
  std::string chain;  ///< certificates as PEM, the signer's first
  std::vector<std::byte> signature;
};

/// Signs `bytes` with the key of `files`, and adds its certificate chain. kInvalidArgument, with
/// the file's name, if a file cannot be used.
Result<Signed> sign(std::span<const std::byte> bytes, const control::TlsFiles& files);

/// The common name in the certificate of `files`.
Result<std::string> own_name(const control::TlsFiles& files);

/// A signer whose certificate was verified.
class Signer {
 public:
  /// Verifies that the first certificate of `chain` belongs to an agent, was issued by the
  /// authority, is valid now and not revoked; else kPermissionDenied with the reason.
  static Result<Signer> verify(const std::string& chain, const control::TlsFiles& files);

  const std::string& name() const { return name_; }  ///< its common name

  /// Whether `signature` is the signer's signature of `bytes`.
  bool has_signed(std::span<const std::byte> bytes, std::span<const std::byte> signature) const;

 private:
  Signer(control::Openssl<EVP_PKEY> key, std::string name)
      : key_(std::move(key)), name_(std::move(name)) {}

  control::Openssl<EVP_PKEY> key_;  ///< null if OpenSSL cannot use it
  std::string name_;
};

}  // namespace gcr::store

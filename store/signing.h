// Signatures of agents: who made bytes, proven by a certificate of the authority.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::store {

inline constexpr std::uint64_t kMaxChainBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSignatureBytes = 4 * 1024;

/// Whether what the agent of that common name has signed is accepted; else why not. None: every
/// agent of the authority is.
using SignerRule = std::function<Status(const std::string& agent)>;

struct Signed {
  std::string chain;  ///< certificates as PEM, the signer's first
  std::vector<std::byte> signature;
};

/// Signs by `files`' key, for its certificate. kInvalidArgument, naming the file, if one of them
/// cannot be used.
Result<Signed> sign(std::span<const std::byte> bytes, const control::TlsFiles& files);

/// The common name of `files`' certificate.
Result<std::string> own_name(const control::TlsFiles& files);

/// A signer whose certificate was verified.
class Signer {
 public:
  /// kPermissionDenied, with the reason, unless the authority has issued the first certificate of
  /// `chain`, it is valid now, not revoked, and an agent's.
  static Result<Signer> verify(const std::string& chain, const control::TlsFiles& files);

  Signer(Signer&&) noexcept;
  ~Signer();

  const std::string& name() const { return name_; }  ///< its common name

  /// Whether it has signed these bytes.
  bool has_signed(std::span<const std::byte> bytes, std::span<const std::byte> signature) const;

 private:
  struct Chain;
  Signer(std::unique_ptr<Chain> chain, std::string name);

  std::unique_ptr<Chain> chain_;
  std::string name_;
};

}  // namespace gcr::store

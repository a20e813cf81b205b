// Proves that an image arrived as CRIU wrote it: a keyed digest of each window, and their sum,
// which does not depend on the order of arrival. A window that is lost, changed, sent twice or
// moved changes the sum.
//
// A window's tag is GMAC (NIST SP 800-38D) with AES-256 over the block's header as if it were not
// compressed and the pages that it contains. The nonce is file, offset and round: a migration
// digests a window once. A window's digest is HMAC-SHA256, cut to 128 bits, of nonce and tag. Both
// keys come from the migration's secret, or a store's (decision 24), so nonces come again; but
// tags, digests and sums are never revealed. The sum is taken modulo 2^128.
//
// Bound. An attacker without the keys changes a windows, and drops, doubles and moves others, so
// that n arrive or are missing. The sum is the same with a probability of at most (a l + n) /
// 2^128, where l < 2^17 is the number of GMAC's blocks in a window: 2^-111 for one changed window,
// 2^-90 for all of 1 TiB.
//   - Two contents of one window have the same tag if GHASH's secret is a root of the polynomial
//     that is their difference, which has at most l roots among 2^128 (the nonce's pad cancels).
//   - Else some pair of nonce and tag comes m times more often on one side, 0 < |m| <= n. HMAC's
//     value F for it is independent of all others, so that m F must be one certain number modulo
//     2^128: gcd(m, 2^128) <= n values of F do that.
// A plain sum of tags falls short of this: GHASH is linear, so the same bits changed in two windows
// change both tags by one difference. The two changes cancel where the tags differ in each set bit
// of it, which happens with a probability of (3/4)^126 = 2^-52.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "migrate-agent/transfer/images/block.h"
#include "src/base/result.h"

namespace gcr::images {

struct ImageDigest {
  std::array<std::uint64_t, 2> words{};

  ImageDigest& operator+=(const ImageDigest& other);
  bool operator==(const ImageDigest&) const = default;

  /// 16 bytes, little-endian words.
  std::string to_bytes() const;
  /// Anything but 16 bytes is kProtocol.
  static Result<ImageDigest> from_bytes(std::string_view bytes);
};

/// One image that was sent whole.
struct ImageFile {
  std::string name;
  std::uint32_t id = 0;  ///< as in its blocks
  std::uint64_t size_bytes = 0;
  ImageDigest digest = {};
};

/// Thread-safe.
class WindowDigester {
 public:
  /// `secret` is the migration's; the keys are derived from it, so that it may serve others too.
  explicit WindowDigester(std::span<const std::byte, 32> secret);

  /// Of the window that `header` describes; `pages` are those present, not compressed.
  Result<ImageDigest> digest(const BlockHeader& header, std::span<const std::byte> pages) const;

 private:
  using Key = std::array<unsigned char, 32>;

  Key tag_key_{};
  Key digest_key_{};
};

}  // namespace gcr::images

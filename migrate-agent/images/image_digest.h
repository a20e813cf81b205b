// What proves that an image arrived as CRIU wrote it, whatever became of its blocks on the way: a
// keyed digest of each window, and their sum, which does not depend on the order of arrival. A
// window that is lost, changed, sent twice or put elsewhere makes another sum.
//
// A window's digest is GMAC (NIST SP 800-38D) with AES-256 under a key of the migration's own, over
// the block's header as if it were not compressed and the pages that it brings. The nonce is file
// and offset: a window is digested once under one key. The sum is taken word by word, modulo 2^64;
// single digests are never shown to anybody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "migrate-agent/images/block.h"
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

/// Thread-safe.
class WindowDigester {
 public:
  /// `secret` is the migration's; the key is derived from it, so that it may serve others too.
  explicit WindowDigester(std::span<const std::byte, 32> secret);

  /// Of the window that `header` describes; `pages` are those present, not compressed.
  Result<ImageDigest> digest(const BlockHeader& header, std::span<const std::byte> pages) const;

 private:
  std::array<unsigned char, 32> key_{};
};

}  // namespace gcr::images

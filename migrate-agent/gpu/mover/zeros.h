// Digests of zeros, by which a chunk full of them is recognised without being read.
#pragma once

#include <algorithm>
#include <cstddef>

#include "migrate-agent/gpu/digest/digest.h"

namespace gcr::mover {

/// Knows the digest of a whole chunk of zeros beforehand. Immutable: threads may share it; the key
/// outlives it.
class Zeros {
 public:
  explicit Zeros(const digest::DigestKey& key) : key_(key), chunk_(digest::digest_zeros(key)) {}

  digest::Digest digest(std::size_t length_bytes) const {
    return length_bytes == kChunkBytes ? chunk_ : digest::digest_zeros(key_, length_bytes);
  }

 private:
  const digest::DigestKey& key_;
  digest::Digest chunk_;
};

}  // namespace gcr::mover

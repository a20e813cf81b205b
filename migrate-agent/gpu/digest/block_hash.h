// Level 1 of the digest (digest.h), in two implementations that agree bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "migrate-agent/gpu/digest/digest.h"

namespace gcr::digest {

using BlockHash = std::array<std::uint64_t, kPasses>;
using BlockHashFunction = BlockHash (*)(const std::byte* block,
                                        std::span<const std::uint32_t, kBlockKeyWords> key);

/// Hashes the kBlockBytes at `block`, of any alignment, on any machine.
BlockHash hash_block_portable(const std::byte* block,
                              std::span<const std::uint32_t, kBlockKeyWords> key);

/// Whether this processor can run hash_block_avx2.
bool have_avx2();

/// The same with AVX2; only where have_avx2().
BlockHash hash_block_avx2(const std::byte* block,
                          std::span<const std::uint32_t, kBlockKeyWords> key);

/// digest_chunk with a given implementation of level 1.
Digest digest_chunk_with(BlockHashFunction hash_block, const DigestKey& key,
                         std::span<const std::byte> chunk);

}  // namespace gcr::digest

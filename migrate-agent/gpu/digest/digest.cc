// The digest on the CPU, as digest.h defines it: level 1 in block_hash.cc, with AVX2 where the
// processor has it, level 2 in block_hash.h. The GPU's is digest_kernel.cu.
#include "migrate-agent/gpu/digest/digest.h"

#include <openssl/evp.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "migrate-agent/gpu/digest/block_hash.h"

namespace gcr::digest {
namespace {

[[noreturn]] void abort_with(const char* why) {
  spdlog::critical("digest: {}", why);
  std::abort();
}

/// Little-endian words from AES-256-CTR.
class KeyStream {
 public:
  explicit KeyStream(std::span<const std::byte, 32> secret) : context_(EVP_CIPHER_CTX_new()) {
    static constexpr std::array<unsigned char, 16> kCounter{};
    const auto* key = reinterpret_cast<const unsigned char*>(secret.data());
    if (!context_ ||
        EVP_EncryptInit_ex(context_.get(), EVP_aes_256_ctr(), nullptr, key, kCounter.data()) != 1) {
      abort_with("OpenSSL has no AES-256-CTR");
    }
  }

  template <class Word>
  Word next() {
    static constexpr std::array<unsigned char, sizeof(Word)> kZeros{};
    std::array<unsigned char, sizeof(Word)> bytes;
    int count = 0;
    if (EVP_EncryptUpdate(context_.get(), bytes.data(), &count, kZeros.data(),
                          static_cast<int>(kZeros.size())) != 1 ||
        count != static_cast<int>(bytes.size())) {
      abort_with("OpenSSL failed in AES-256-CTR");
    }
    Word word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    return word;
  }

 private:
  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
};

void check_length(std::size_t length_bytes) {
  if (length_bytes > kChunkBytes) abort_with("a chunk is longer than 2 MiB");
}

Digest sum_zeros(const DigestKey& key, std::size_t length_bytes) {
  static constexpr std::array<std::byte, kBlockBytes> kZeros{};
  const BlockHash zeros = hash_block_portable(kZeros.data(), key.block_key());
  ChunkSums sums(key.sum_key(), length_bytes);
  for (std::size_t at = 0; at < length_bytes; at += kBlockBytes) sums.add(zeros);
  return sums.digest();
}

}  // namespace

DigestKey DigestKey::expand(std::span<const std::byte, 32> secret) {
  KeyStream stream(secret);
  DigestKey key;
  for (std::uint32_t& word : key.block_key_) word = stream.next<std::uint32_t>();
  key.sum_key_.reserve(kSumKeyWords);
  while (key.sum_key_.size() < kSumKeyWords) {
    const std::uint64_t word = stream.next<std::uint64_t>() & kPrime;
    if (word != kPrime) key.sum_key_.push_back(word);
  }
  key.zero_chunk_ = sum_zeros(key, kChunkBytes);
  return key;
}

Digest digest_chunk_with(BlockHashFunction hash_block, const DigestKey& key,
                         std::span<const std::byte> chunk) {
  check_length(chunk.size());
  return sum_chunk(hash_block, key.block_key(), key.sum_key(), chunk);
}

Digest digest_chunk(const DigestKey& key, std::span<const std::byte> chunk) {
  static const BlockHashFunction kHashBlock = have_avx2() ? hash_block_avx2 : hash_block_portable;
  return digest_chunk_with(kHashBlock, key, chunk);
}

Digest digest_zeros(const DigestKey& key, std::size_t length_bytes) {
  check_length(length_bytes);
  return length_bytes == kChunkBytes ? key.zero_chunk() : sum_zeros(key, length_bytes);
}

}  // namespace gcr::digest

// How fast one core digests chunks, in its cache and from memory. Prints bytes per second.
#include <benchmark/benchmark.h>

#include <vector>

#include "migrate-agent/gpu/digest/block_hash.h"
#include "migrate-agent/gpu/digest/digest.h"

namespace gcr::digest {
namespace {

DigestKey some_key() {
  std::array<std::byte, 32> secret{};
  secret[0] = std::byte{1};
  return DigestKey::expand(secret);
}

void digest_chunks(benchmark::State& state, BlockHashFunction hash_block) {
  const DigestKey key = some_key();
  const auto chunks = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> bytes(chunks * kChunkBytes, std::byte{7});
  std::size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto chunk = std::span(bytes).subspan(next * kChunkBytes, kChunkBytes);
    benchmark::DoNotOptimize(digest_chunk_with(hash_block, key, chunk));
    next = (next + 1) % chunks;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kChunkBytes));
}

void expand_key(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(some_key());
}

BENCHMARK_CAPTURE(digest_chunks, portable, hash_block_portable)->Arg(1)->Arg(128);
BENCHMARK_CAPTURE(digest_chunks, avx2, have_avx2() ? hash_block_avx2 : hash_block_portable)
    ->Arg(1)
    ->Arg(128);
BENCHMARK(expand_key);

}  // namespace
}  // namespace gcr::digest

BENCHMARK_MAIN();

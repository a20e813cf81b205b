// How fast pages are packed and compressed, and the resulting sizes. GCR_IMAGE in the environment
// names an image to try (a pages-1.img); without one, generated text.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "migrate-agent/transfer/images/block.h"
#include "migrate-agent/transfer/images/image_digest.h"
#include "store/codec.h"

namespace gcr::images {
namespace {

constexpr std::size_t kMaxBytes = 512 * kMiB;

const std::vector<std::byte>& image() {
  static const std::vector<std::byte> content = [] {
    std::vector<std::byte> bytes;
    if (const char* path = std::getenv("GCR_IMAGE")) {
      std::ifstream file(path, std::ios::binary | std::ios::ate);
      bytes.resize(std::min<std::size_t>(static_cast<std::size_t>(file.tellg()), kMaxBytes));
      file.seekg(0);
      file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    } else {
      std::string text;
      for (int line = 0; text.size() < 16 * kMiB; ++line) text += std::to_string(line) + " lines\n";
      const auto view = std::as_bytes(std::span(text));
      bytes.assign(view.begin(), view.end());
    }
    bytes.resize(bytes.size() / kWindowBytes * kWindowBytes);
    return bytes;
  }();
  return content;
}

/// One window after the other, packed; compressed with the codec, if there is one.
void pack_and_compress(benchmark::State& state, store::Codec codec) {
  const auto& content = image();
  std::vector<std::byte> window(kWindowBytes);
  std::vector<std::byte> stored(kWindowBytes);
  std::size_t at = 0;
  double raw = 0;
  double packed = 0;
  double sent = 0;
  for ([[maybe_unused]] auto _ : state) {
    window.assign(content.begin() + static_cast<std::ptrdiff_t>(at),
                  content.begin() + static_cast<std::ptrdiff_t>(at + kWindowBytes));
    at = (at + kWindowBytes) % content.size();
    BlockHeader header;
    header.raw_bytes = kWindowBytes;
    header.present = pages_with_data(window);
    pack(window, header.present);
    const auto payload = std::span(window).first(header.payload_bytes());
    std::size_t size = 0;
    if (codec != store::Codec::kNone && !payload.empty())
      size = store::compress(codec, payload, stored);
    raw += kWindowBytes;
    packed += static_cast<double>(payload.size());
    sent += static_cast<double>(size != 0 ? size : payload.size());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(raw));
  state.counters["not_zero"] = packed / raw;
  state.counters["sent"] = sent / raw;
}

/// The additional cost of each window on both sides.
void digest(benchmark::State& state) {
  const WindowDigester digester(std::array<std::byte, 32>{});
  const auto pages = std::span(image()).first(kWindowBytes);
  BlockHeader header;
  header.raw_bytes = kWindowBytes;
  header.present.set();
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(digester.digest(header, pages));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kWindowBytes));
}

BENCHMARK(digest);
BENCHMARK_CAPTURE(pack_and_compress, none, store::Codec::kNone);
BENCHMARK_CAPTURE(pack_and_compress, lz4, store::Codec::kLz4);
BENCHMARK_CAPTURE(pack_and_compress, zstd, store::Codec::kZstd);

}  // namespace
}  // namespace gcr::images

BENCHMARK_MAIN();

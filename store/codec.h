// Compression of memory pages, and the choice of a codec.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "src/base/result.h"

namespace gcr::store {

/// The codec of a block, with its number in the file format. Zero is never used.
enum class Codec : std::uint16_t { kInvalid = 0, kNone = 1, kLz4 = 2, kZstd = 3 };

/// "none", "lz4", "zstd".
std::string_view to_string(Codec codec);

/// The compression that the operator requested.
enum class Compression { kAuto, kNone, kLz4, kZstd };

/// Compresses `raw` into `out`; returns the number of bytes written, or 0 if that is not fewer than
/// raw.size() (or `out` is too small). kLz4 and kZstd only. Any thread.
std::size_t compress(Codec codec, std::span<const std::byte> raw, std::span<std::byte> out);

/// Decompresses `stored` into `raw`. `stored` may hold any bytes but must not change meanwhile.
/// Fails with kDataLoss unless it yields exactly raw.size() bytes. kLz4 and kZstd only. Any thread.
Status decompress(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw);

/// Chooses for each block the codec that transfers the images fastest. An uncompressed block takes
/// size / rate on the link; a compressed one takes less on the link but also CPU time: the slower
/// of the two counts. The first blocks try each codec; their cost and gain decide for the others.
/// Thread-safe.
class CodecChooser {
 public:
  /// `link_bytes_per_s` is the measured rate; if it is 0 (unknown), kAuto does not compress.
  /// `threads` compress concurrently.
  CodecChooser(Compression requested, double link_bytes_per_s, unsigned threads);

  /// The codec for the next block.
  Codec next();

  /// Records the cost of compressing a block. `stored_bytes` is `raw_bytes` if it did not get
  /// smaller.
  void observe(Codec codec, std::size_t raw_bytes, std::size_t stored_bytes, double seconds);

  /// The codec that blocks get at present.
  Codec chosen() const;

 private:
  struct Observed {
    unsigned asked = 0;
    std::uint64_t raw_bytes = 0;
    std::uint64_t stored_bytes = 0;
    double seconds = 0;
  };
  Codec best() const;

  const std::optional<Codec> fixed_;  ///< none: best() decides
  const double link_bytes_per_s_;
  const unsigned threads_;
  mutable std::mutex mutex_;
  std::array<Observed, 2> observed_;  ///< lz4, zstd
};

}  // namespace gcr::store

// Compression of the pages that are sent, and whether it pays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include "src/base/result.h"

namespace gcr::store {

/// As they stand in a block. Zero is never used.
enum class Codec : std::uint16_t { kInvalid = 0, kNone = 1, kLz4 = 2, kZstd = 3 };

/// "none", "lz4", "zstd".
std::string_view to_string(Codec codec);

/// What was asked for.
enum class Compression { kAuto, kNone, kLz4, kZstd };

/// Compresses `raw` into `out`; gives the bytes written, or 0 if they are not fewer than `raw`
/// has (or `out` is too small). kLz4 and kZstd only. Any thread.
std::size_t compress(Codec codec, std::span<const std::byte> raw, std::span<std::byte> out);

/// Fills `raw` from `stored`, which may hold anything but must not change meanwhile. kDataLoss
/// unless it gives exactly raw.size() bytes. kLz4 and kZstd only. Any thread.
Status decompress(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw);

/// Chooses for each block the codec that transfers the images fastest. An uncompressed block takes
/// size / rate on the link; a compressed one takes less on the link but also time on the cores: the
/// slower of the two counts. The first blocks try each codec; their cost and gain decide for the
/// rest. Thread-safe.
class CodecChooser {
 public:
  /// `link_bytes_per_s`: the measured rate; 0 if none was measured: then kAuto does not compress.
  /// `threads` compress at the same time.
  CodecChooser(Compression requested, double link_bytes_per_s, unsigned threads);

  /// For the next block.
  Codec next();

  /// What compressing a block cost. `stored_bytes` is `raw_bytes` if it did not get smaller.
  void observe(Codec codec, std::size_t raw_bytes, std::size_t stored_bytes, double seconds);

  /// The codec that blocks get now.
  Codec chosen() const;

 private:
  struct Observed {
    unsigned asked = 0;
    std::uint64_t raw_bytes = 0;
    std::uint64_t stored_bytes = 0;
    double seconds = 0;
  };
  Codec best() const;

  const Compression requested_;
  const double link_bytes_per_s_;
  const unsigned threads_;
  mutable std::mutex mutex_;
  std::array<Observed, 2> observed_;  ///< lz4, zstd
};

}  // namespace gcr::store

// Compression of the pages that are sent, and whether it pays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include "src/base/result.h"

namespace gcr::images {

/// As they stand in a block. Zero is never used.
enum class Codec : std::uint16_t { kInvalid = 0, kNone = 1, kLz4 = 2, kZstd = 3 };

/// "none", "lz4", "zstd".
std::string_view to_string(Codec codec);

/// What was asked for.
enum class Compression { kAuto, kNone, kLz4, kZstd };

/// Compresses `raw` into `out`; the bytes written, or 0 if it does not get smaller than `raw` (or
/// `out` is too small): then it is not worth it. kLz4 and kZstd only. Any thread.
std::size_t compress(Codec codec, std::span<const std::byte> raw, std::span<std::byte> out);

/// Fills `raw` from `stored`, which may hold anything but must not change meanwhile. kDataLoss
/// unless it gives exactly raw.size() bytes. kLz4 and kZstd only. Any thread.
Status decompress(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw);

/// Decides block by block what gets the images over soonest. A block that is sent as it is takes
/// the link size / rate; a compressed one takes the link less but takes a share of the cores: the
/// slower of both counts. The first blocks try each codec; what they cost and gave decides for the
/// rest. Thread-safe.
class CodecChooser {
 public:
  /// `link_bytes_per_s`: the rate that was measured, 0 if none was: then kAuto sends blocks as they
  /// are. `threads` compress at the same time.
  CodecChooser(Compression requested, double link_bytes_per_s, unsigned threads);

  /// For the next block.
  Codec next();

  /// What compressing a block has cost. `stored_bytes` is `raw_bytes` where it did not get smaller.
  void observe(Codec codec, std::size_t raw_bytes, std::size_t stored_bytes, double seconds);

  /// What blocks are given now.
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

}  // namespace gcr::images

// VRAM that is rewritten piece by piece, and a record on the host of each piece's content.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "tests/apps/driver.h"

namespace gcr::apps {

struct ScribblerOptions {
  std::uint64_t vram_bytes = 0;   ///< a multiple of 2 MiB
  std::uint64_t piece_bytes = 0;  ///< the unit of rewriting: divides 2 MiB, a multiple of 8
  double zeros = 0;               ///< the share of pieces that are filled with zeros
  bool by_copy = false;           ///< write by copies from the host, not by a kernel
  std::uint64_t seed = 1;
};

/// All choices come from the seed and from the order of the calls, none from time or addresses: the
/// same calls give the same content and the same checksums. Each difference between VRAM and the
/// record ends the program.
class Scribbler {
 public:
  /// Allocates buffers of different sizes and fills them.
  Scribbler(const Gpu& gpu, const ScribblerOptions& options);

  /// Checks `count` pieces, chosen at random without repetition until all had their turn, then
  /// rewrites them. Returns the checksum of the checked pieces.
  std::uint64_t rewrite(std::uint64_t count);

  /// Checks everything; returns the checksum over it.
  std::uint64_t check_all();

  /// Checks and frees a buffer chosen at random and allocates another of a different size, as long
  /// as the total stays below the configured size.
  void replace_buffer();

  std::uint64_t pieces() const { return piece_count_; }

 private:
  /// As the kernels' table has it.
  struct Piece {
    std::uint64_t address;
    std::uint64_t words;
    std::uint64_t seed;  ///< 0: zeros
  };
  struct Buffer {
    CUdeviceptr address;
    std::uint64_t bytes;
    std::vector<Piece> pieces;
  };

  /// 0 to `end` - 1.
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::uint64_t new_seed();
  void allocate(std::uint64_t bytes);
  void shuffle();
  std::vector<Piece*> choose(std::uint64_t count);
  std::uint64_t check(const std::vector<Piece>& pieces);
  void write(const std::vector<Piece>& pieces);
  void copy_from_host(const Piece& piece);
  void upload(const std::vector<Piece>& pieces);

  const Gpu& gpu_;
  ScribblerOptions options_;
  std::mt19937_64 random_;
  std::deque<Buffer> buffers_;
  std::uint64_t bytes_ = 0;
  std::uint64_t piece_count_ = 0;
  std::vector<Piece*> turn_;  ///< remaining pieces of the turn, the last one first
  CUdeviceptr table_;
  CUdeviceptr result_;
};

}  // namespace gcr::apps

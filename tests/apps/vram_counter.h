// The VRAM of counting programs.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/apps/driver.h"

namespace gcr::apps {

/// A number in a buffer of 2 MiB, and a second time in a variable of the module. A kernel
/// increments both.
class VramCounter {
 public:
  VramCounter(const Gpu& gpu, std::uint64_t start);

  struct Values {
    std::uint64_t number;
    std::uint64_t twin;  ///< a value that differs from `number`: something is lost
  };
  /// Counts, and reads both.
  Values next() const;

 private:
  const Gpu& gpu_;
  CUdeviceptr number_;
  CUdeviceptr twin_;
};

/// More VRAM: buffers, each filled with a pattern whose checksum was taken at the start.
class Ballast {
 public:
  Ballast(const Gpu& gpu, std::uint64_t bytes, std::uint64_t piece_bytes);

  bool intact() const { return checksum() == expected_; }

 private:
  struct Buffer {
    CUdeviceptr address;
    std::uint64_t words;
  };

  std::uint64_t checksum() const;

  const Gpu& gpu_;
  CUdeviceptr sum_;
  std::vector<Buffer> buffers_;
  std::uint64_t expected_ = 0;
};

}  // namespace gcr::apps

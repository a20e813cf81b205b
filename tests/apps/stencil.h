// What the stencil and its relatives share: a ring of buffers in VRAM that steps work on, and a
// checksum over all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/apps/driver.h"

namespace gcr::apps {

struct RingBuffer {
  CUdeviceptr address = 0;
  std::uint64_t words = 0;
};

/// Step n rewrites a slice of one buffer from its content and that of the next buffer. Slices cycle
/// through all buffers. A step that is lost, repeated or done on wrong data changes every later
/// checksum.
class Ring {
 public:
  /// Fills the buffers with a pattern. A slice has at most `slice_words` words.
  Ring(const Gpu& gpu, std::vector<RingBuffer> buffers, std::uint64_t slice_words);

  /// Launches the next step in `stream` and returns; its number is steps() afterwards.
  void step(CUstream stream = nullptr);
  std::uint64_t steps() const { return steps_; }

  /// The checksum over all buffers; waits for the device. Ends the program if the device has
  /// counted a different number of steps than the host.
  std::uint64_t checksum();

  const std::vector<RingBuffer>& buffers() const { return buffers_; }

 private:
  const Gpu& gpu_;
  std::vector<RingBuffer> buffers_;
  std::uint64_t slice_words_;
  CUdeviceptr sum_;
  CUdeviceptr device_steps_;
  std::uint64_t steps_ = 0;
  std::size_t buffer_ = 0;
  std::uint64_t first_ = 0;
};

/// Prints "step=<n> checksum=<hex>" and flushes.
void report(std::uint64_t step, std::uint64_t checksum);

}  // namespace gcr::apps

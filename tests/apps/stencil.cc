#include "tests/apps/stencil.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace gcr::apps {

Ring::Ring(const Gpu& gpu, std::vector<RingBuffer> buffers, std::uint64_t slice_words)
    : gpu_(gpu),
      buffers_(std::move(buffers)),
      slice_words_(slice_words),
      sum_(gpu.allocate(sizeof(std::uint64_t))),
      device_steps_(gpu.variable("gcr_stencil_steps")) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    gpu.launch("gcr_stencil_init", {buffers_[i].address, buffers_[i].words, i}, buffers_[i].words);
  }
  gpu.synchronize();  // steps may be in a stream that does not wait for this one
}

void Ring::step(CUstream stream) {
  const RingBuffer& to = buffers_[buffer_];
  const RingBuffer& from = buffers_[(buffer_ + 1) % buffers_.size()];
  const std::uint64_t count = std::min(slice_words_, to.words - first_);
  ++steps_;
  gpu_.launch("gcr_stencil_step", {to.address, from.address, from.words, first_, count, steps_},
              count, stream);
  first_ += count;
  if (first_ < to.words) return;
  first_ = 0;
  buffer_ = (buffer_ + 1) % buffers_.size();
}

std::uint64_t Ring::checksum() {
  gpu_.synchronize();
  gpu_.write_word(sum_, 0);
  std::uint64_t seed = 0;
  for (const RingBuffer& buffer : buffers_) {
    gpu_.launch("gcr_stencil_checksum", {buffer.address, buffer.words, seed, sum_}, buffer.words);
    seed += buffer.words;
  }
  const std::uint64_t sum = gpu_.read_word(sum_);
  const std::uint64_t seen = gpu_.read_word(device_steps_);
  if (seen != steps_) {
    fail("go on", "the device counted " + std::to_string(seen) + " steps, the host " +
                      std::to_string(steps_));
  }
  return sum;
}

void report(std::uint64_t step, std::uint64_t checksum) {
  std::printf("step=%" PRIu64 " checksum=%016" PRIx64 "\n", step, checksum);
  std::fflush(stdout);
}

}  // namespace gcr::apps

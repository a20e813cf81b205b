#include "tests/apps/vram_counter.h"

#include <algorithm>

#include "src/base/units.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kPatternSeed = 0x636f756e74657200;

}  // namespace

VramCounter::VramCounter(const Gpu& gpu, std::uint64_t start)
    : gpu_(gpu), number_(gpu.allocate(kChunkBytes)), twin_(gpu.variable("gcr_counter_twin")) {
  gpu.write_word(number_, start);
  gpu.write_word(twin_, start);
}

VramCounter::Values VramCounter::next() const {
  gpu_.launch("gcr_counter_increment", {number_}, 1);
  return {gpu_.read_word(number_), gpu_.read_word(twin_)};
}

Ballast::Ballast(const Gpu& gpu, std::uint64_t bytes, std::uint64_t piece_bytes)
    : gpu_(gpu), sum_(gpu.allocate(sizeof(sum_))) {
  bytes = round_up(bytes, 8);
  piece_bytes = round_up(piece_bytes, 8);
  for (std::uint64_t left = bytes; left > 0;) {
    const std::uint64_t size = std::min<std::uint64_t>(left, piece_bytes);
    buffers_.push_back({gpu.allocate(size), size / 8});
    gpu.launch("gcr_stencil_init",
               {buffers_.back().address, buffers_.back().words, kPatternSeed + left},
               buffers_.back().words);
    left -= size;
  }
  expected_ = checksum();
}

std::uint64_t Ballast::checksum() const {
  gpu_.write_word(sum_, 0);
  std::uint64_t seed = 0;
  for (const Buffer& buffer : buffers_) {
    gpu_.launch("gcr_stencil_checksum", {buffer.address, buffer.words, seed, sum_}, buffer.words);
    seed += buffer.words;
  }
  return gpu_.read_word(sum_);
}

}  // namespace gcr::apps

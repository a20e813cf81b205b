#include "tests/softgpu/engine/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <span>
#include <unordered_map>

#include "tests/softgpu/engine/digest_kernel.h"
#include "tests/softgpu/engine/memory.h"
#include "tests/softgpu/engine/module.h"
#include "tests/softgpu/engine/waiting_kernels.h"

namespace gcr::softgpu {
namespace {

// Constants of tests/apps/kernels.cu, which describes each kernel's computation.
constexpr std::uint64_t kInitMultiplier = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kStepMultiplier = 0xd1342543de82ef95;

Result noop(const Launch&) { return Result::kSuccess; }

Result fill(const Launch& launch) {
  const auto words = launch.argument<std::uint64_t>(8);
  std::uint64_t* to = launch.writable(launch.argument<std::uint64_t>(0), words);
  if (to == nullptr) return Result::kIllegalAddress;
  std::fill_n(to, words, launch.argument<std::uint64_t>(16));
  return Result::kSuccess;
}

Result counter_increment(const Launch& launch) {
  std::uint64_t* number = launch.writable(launch.argument<std::uint64_t>(0), 1);
  std::uint64_t* twin = launch.variable("gcr_counter_twin");
  if (number == nullptr || twin == nullptr) return Result::kIllegalAddress;
  ++*number;
  ++*twin;
  return Result::kSuccess;
}

Result stencil_init(const Launch& launch) {
  const auto words = launch.argument<std::uint64_t>(8);
  const auto seed = launch.argument<std::uint64_t>(16);
  std::uint64_t* to = launch.writable(launch.argument<std::uint64_t>(0), words);
  if (to == nullptr) return Result::kIllegalAddress;
  for (std::uint64_t i = 0; i < words; ++i) {
    const std::uint64_t word = ((i + 1) * kInitMultiplier) ^ seed;
    to[i] = word ^ (word >> 29);
  }
  return Result::kSuccess;
}

Result stencil_step(const Launch& launch) {
  const auto source_words = launch.argument<std::uint64_t>(16);
  const auto first = launch.argument<std::uint64_t>(24);
  const auto count = launch.argument<std::uint64_t>(32);
  const auto step = launch.argument<std::uint64_t>(40);
  std::uint64_t* to = launch.writable(launch.argument<std::uint64_t>(0) + first * 8, count);
  const std::uint64_t* from = launch.readable(launch.argument<std::uint64_t>(8), source_words);
  std::uint64_t* steps = launch.variable("gcr_stencil_steps");
  if (to == nullptr || from == nullptr || steps == nullptr || source_words == 0) {
    return Result::kIllegalAddress;
  }
  std::uint64_t left = first % source_words;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t right = left + 1 == source_words ? 0 : left + 1;
    to[i] = std::rotl(to[i], 7) * kStepMultiplier + (from[left] ^ (from[right] >> 3)) + step;
    left = right;
  }
  ++*steps;
  return Result::kSuccess;
}

Result stencil_checksum(const Launch& launch) {
  const auto words = launch.argument<std::uint64_t>(8);
  const auto seed = launch.argument<std::uint64_t>(16);
  const std::uint64_t* from = launch.readable(launch.argument<std::uint64_t>(0), words);
  std::uint64_t* sum = launch.writable(launch.argument<std::uint64_t>(24), 1);
  if (from == nullptr || sum == nullptr) return Result::kIllegalAddress;
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < words; ++i) {
    total += (from[i] ^ (from[i] >> 31)) * (2 * (i + seed) + 1);
  }
  *sum += total;
  return Result::kSuccess;
}

/// A piece in the scribbler's table.
struct Piece {
  std::uint64_t address;
  std::uint64_t words;
  std::uint64_t seed;

  std::uint64_t word(std::uint64_t index) const {
    const std::uint64_t word = ((index + 1) * kInitMultiplier) ^ seed;
    return seed == 0 ? 0 : word ^ (word >> 29);
  }
};

/// The table of a launch, or null.
const Piece* pieces_of(const Launch& launch) {
  return reinterpret_cast<const Piece*>(
      launch.readable(launch.argument<std::uint64_t>(0), launch.argument<std::uint64_t>(8) * 3));
}

Result scribble(const Launch& launch) {
  const Piece* pieces = pieces_of(launch);
  if (pieces == nullptr) return Result::kIllegalAddress;
  for (const Piece& piece : std::span(pieces, launch.argument<std::uint64_t>(8))) {
    std::uint64_t* to = launch.writable(piece.address, piece.words);
    if (to == nullptr) return Result::kIllegalAddress;
    for (std::uint64_t i = 0; i < piece.words; ++i) to[i] = piece.word(i);
  }
  return Result::kSuccess;
}

Result scribble_check(const Launch& launch) {
  const Piece* pieces = pieces_of(launch);
  std::uint64_t* result = launch.writable(launch.argument<std::uint64_t>(16), 2);
  if (pieces == nullptr || result == nullptr) return Result::kIllegalAddress;
  std::uint64_t wrong = 0;
  std::uint64_t sum = 0;
  for (const Piece& piece : std::span(pieces, launch.argument<std::uint64_t>(8))) {
    const std::uint64_t* from = launch.readable(piece.address, piece.words);
    if (from == nullptr) return Result::kIllegalAddress;
    for (std::uint64_t i = 0; i < piece.words; ++i) {
      wrong += from[i] != piece.word(i) ? 1 : 0;
      sum += (from[i] ^ (from[i] >> 31)) * (2 * (i + piece.seed) + 1);
    }
  }
  result[0] += wrong;
  result[1] += sum;
  return Result::kSuccess;
}

std::uint64_t* checked(const Launch& launch, std::uint64_t address, std::uint64_t count,
                       int protection) {
  if (address % 8 != 0 || count > (std::uint64_t{1} << 48) ||
      !launch.memory->accessible_to_kernels(*launch.module->context, address, count * 8,
                                            protection)) {
    return nullptr;
  }
  return reinterpret_cast<std::uint64_t*>(address);
}

}  // namespace

std::uint64_t* Launch::writable(std::uint64_t address, std::uint64_t count) const {
  return checked(*this, address, count, PROT_READ | PROT_WRITE);
}

const std::uint64_t* Launch::readable(std::uint64_t address, std::uint64_t count) const {
  return checked(*this, address, count, PROT_READ);
}

std::uint64_t* Launch::variable(std::string_view name) const {
  const auto found = module->globals.find(std::string(name));
  return found == module->globals.end() ? nullptr
                                        : reinterpret_cast<std::uint64_t*>(found->second.address);
}

KernelBody find_kernel(std::string_view name) {
  static const std::unordered_map<std::string_view, KernelBody> kernels{
      {"gcr_noop", noop},
      {"gcr_fill", fill},
      {"gcr_counter_increment", counter_increment},
      {"gcr_stencil_init", stencil_init},
      {"gcr_stencil_step", stencil_step},
      {"gcr_stencil_checksum", stencil_checksum},
      {"gcr_digest_chunks", digest_chunks},
      {"gcr_scribble", scribble},
      {"gcr_scribble_check", scribble_check},
      {"gcr_wait", wait_for_word},
      {"gcr_ring_pass", ring_pass},
  };
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : found->second;
}

}  // namespace gcr::softgpu

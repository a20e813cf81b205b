#include "tests/softgpu/engine/waiting_kernels.h"

#include "tests/apps/ring.h"

namespace gcr::softgpu {
namespace {

std::uint64_t acquire(const std::uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void release(std::uint64_t* word, std::uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

}  // namespace

Result wait_for_word(const Launch& launch) {
  const std::uint64_t* word = launch.readable(launch.argument<std::uint64_t>(0), 1);
  if (word == nullptr) return Result::kIllegalAddress;
  return acquire(word) >= launch.argument<std::uint64_t>(8) ? Result::kSuccess : Result::kNotReady;
}

Result ring_pass(const Launch& launch) {
  const auto ranks = launch.argument<std::uint64_t>(24);
  const auto rank = launch.argument<std::uint64_t>(32);
  const auto words = launch.argument<std::uint64_t>(40);
  const std::uint64_t message = words + apps::kRingHeaderWords;
  auto* state = reinterpret_cast<apps::RingState*>(
      launch.writable(launch.argument<std::uint64_t>(0), sizeof(apps::RingState) / 8));
  if (state == nullptr || ranks == 0) return Result::kIllegalAddress;
  const std::uint64_t step = state->step + 1;
  const std::uint64_t offset = step % ranks * message * 8;
  const std::uint64_t* in = launch.readable(launch.argument<std::uint64_t>(8) + offset, message);
  std::uint64_t* out = launch.writable(launch.argument<std::uint64_t>(16) + offset, message);
  if (in == nullptr || out == nullptr) return Result::kIllegalAddress;
  if (*out != step) {  // not sent by an earlier call
    out[1] = state->token;
    for (std::uint64_t i = 0; i < words; ++i) {
      out[apps::kRingHeaderWords + i] = apps::ring_word(state->token, i);
    }
    release(out, step);
  }
  const std::uint64_t arrived = acquire(in);
  if (arrived < step) return Result::kNotReady;
  const std::uint64_t token = in[1];
  if (arrived != step) ++state->wrong;
  for (std::uint64_t i = 0; i < words; ++i) {
    if (in[apps::kRingHeaderWords + i] != apps::ring_word(token, i)) ++state->wrong;
  }
  state->token = apps::ring_token(token, rank);
  state->sum = apps::ring_sum(state->sum, state->token);
  state->step = step;
  return Result::kSuccess;
}

}  // namespace gcr::softgpu

// The functions below replace the C library's, because the dynamic loader searches a program's own
// symbols first.
#include "tests/bench/copied_bytes.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>

namespace gcr::bench {
namespace {

// Constant-initialised: copies happen before main.
std::atomic<bool> counting = false;
std::atomic<std::uint64_t> copied = 0;

using Copy = void* (*)(void*, const void*, std::size_t);
std::atomic<Copy> real_move = nullptr;

/// Until the C library's function is found, byte by byte: the lookup may copy, too.
void* move_bytes(void* to, const void* from, std::size_t count) {
  auto* out = static_cast<volatile std::byte*>(to);
  const auto* in = static_cast<const volatile std::byte*>(from);
  if (out <= in) {
    for (std::size_t i = 0; i < count; ++i) out[i] = in[i];
  } else {
    for (std::size_t i = count; i > 0; --i) out[i - 1] = in[i - 1];
  }
  return to;
}

__attribute__((constructor)) void find_real_move() {
  real_move = reinterpret_cast<Copy>(::dlsym(RTLD_NEXT, "memmove"));
}

void* count_and_move(void* to, const void* from, std::size_t count) {
  if (counting.load(std::memory_order_relaxed)) {
    copied.fetch_add(count, std::memory_order_relaxed);
  }
  const Copy move = real_move.load(std::memory_order_relaxed);
  return move != nullptr ? move(to, from, count) : move_bytes(to, from, count);
}

}  // namespace

void start_counting_copies() { counting = true; }

std::uint64_t copied_bytes() { return copied.load(std::memory_order_relaxed); }

}  // namespace gcr::bench

// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)
extern "C" {
void* memcpy(void* to, const void* from, std::size_t count) noexcept {
  return gcr::bench::count_and_move(to, from, count);
}
void* memmove(void* to, const void* from, std::size_t count) noexcept {
  return gcr::bench::count_and_move(to, from, count);
}
void* __memcpy_chk(void* to, const void* from, std::size_t count, std::size_t room) noexcept {
  if (count > room) __builtin_trap();
  return gcr::bench::count_and_move(to, from, count);
}
void* __memmove_chk(void* to, const void* from, std::size_t count, std::size_t room) noexcept {
  if (count > room) __builtin_trap();
  return gcr::bench::count_and_move(to, from, count);
}
}
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

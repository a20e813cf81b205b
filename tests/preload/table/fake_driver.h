// What the fake driver of these tests remembers. Tests reach it by dlsym in libcuda.so.1.
#pragma once

#include <array>
#include <cstddef>

namespace gcr::preload::fake {

/// The latest call of any function but cuGetProcAddress.
struct Call {
  const char* symbol = nullptr;
  bool looked_up = false;  ///< reached by an address that only cuGetProcAddress gives
  unsigned int gate_in_flight = 0;
  std::size_t argument_bytes = 0;
  std::array<unsigned char, 256> arguments{};  ///< back to back, without padding
};

/// Returned by every function; not a result that anything else uses.
inline constexpr int kResult = 717;

/// Exported: the latest call, forgotten by the reading of it.
using TakeCall = Call (*)();
inline constexpr char kTakeCall[] = "gcr_fake_take_call";

/// Exported: the symbol that cuGetProcAddress means, or null. What a test expects.
using Meant = const char* (*)(const char* public_name, int version, unsigned long long flags);
inline constexpr char kMeant[] = "gcr_fake_meant";

}  // namespace gcr::preload::fake

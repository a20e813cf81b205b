// The record of the fake driver. Tests reach it by dlsym in libcuda.so.1.
#pragma once

#include <array>
#include <cstddef>

namespace gcr::preload::fake {

/// The latest call of a function other than cuGetProcAddress.
struct Call {
  const char* symbol = nullptr;
  bool looked_up = false;  ///< reached by an address that only cuGetProcAddress returns
  unsigned int gate_in_flight = 0;
  std::size_t argument_bytes = 0;
  std::array<unsigned char, 256> arguments{};  ///< back to back, without padding
};

/// Returned by every function; not used as a result elsewhere.
inline constexpr int kResult = 717;

/// Exported: the latest call, cleared by reading it. Valid until the next reading.
using TakeCall = const Call* (*)();
inline constexpr char kTakeCall[] = "gcr_fake_take_call";

/// Exported: the symbol that cuGetProcAddress should return, or null: a test's expectation.
using Meant = const char* (*)(const char* public_name, int version, unsigned long long flags);
inline constexpr char kMeant[] = "gcr_fake_meant";

}  // namespace gcr::preload::fake

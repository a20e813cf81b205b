// Processor state of a stopped thread that CRIU does not carry: components of the extended
// state of x86-64, tiles of AMX among them, as ptrace shows it (NT_X86_XSTATE).
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 13:
// a legacy region of 512 bytes, a header whose first 64 bits say which components are not in their
// initial state, and the components where leaf 13 of CPUID says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/result.h"

namespace gcr::criu {

/// Where this processor has the components; size 0: it has none of that number, or only the kernel.
struct StateLayout {
  struct Component {
    std::uint32_t offset = 0;
    std::uint32_t size = 0;
  };
  std::array<Component, 63> components{};

  static StateLayout of_this_processor();

  /// Whether there is any that CRIU does not carry.
  bool exceeds_criu() const;
};

/// Components that are in use and that CRIU does not carry, in the order of their numbers.
struct ExtendedState {
  std::uint64_t components = 0;  ///< a bit each
  std::vector<std::byte> bytes;
};

inline constexpr unsigned kTileData = 18;  ///< the number of AMX's tiles
/// x87, SSE, AVX, MPX, AVX-512 and protection keys: what CRIU 4.2 has in its images of a thread.
inline constexpr std::uint64_t kCarriedByCriu = 0x2ff;
/// No processor has more.
inline constexpr std::size_t kMaxStateBytes = 16384;

/// Takes them out of an image of the whole state. Nothing if the image is too small for them.
ExtendedState take_state(std::span<const std::byte> image, const StateLayout& layout);

/// Puts them in. kUnsupported if this processor has no such components, kProtocol if `bytes` are
/// not as many as they take.
Status put_state(std::span<std::byte> image, const StateLayout& layout, std::uint64_t components,
                 std::span<const std::byte> bytes);

}  // namespace gcr::criu

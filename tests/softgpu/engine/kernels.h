// The kernels that the software GPU can run: CPU code, found by the entry name in a program's PTX.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "tests/softgpu/engine/result.h"

namespace gcr::softgpu {

struct Module;
class Memory;

/// One launch as a kernel sees it.
struct Launch {
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  std::vector<std::byte> arguments;  ///< laid out as the kernel declares them
  const Module* module = nullptr;
  const Memory* memory = nullptr;

  template <class T>
  T argument(std::size_t offset) const {
    T value{};
    if (offset + sizeof(T) <= arguments.size()) {
      std::memcpy(&value, arguments.data() + offset, sizeof(T));
    }
    return value;
  }
  /// `count` words of memory that the kernel may write (or read), or null: the kernel then returns
  /// Result::kIllegalAddress, and its context is lost as on a real GPU.
  std::uint64_t* writable(std::uint64_t address, std::uint64_t count) const;
  const std::uint64_t* readable(std::uint64_t address, std::uint64_t count) const;
  /// A variable of the module, or null.
  std::uint64_t* variable(std::string_view name) const;
};

/// A kernel that waits for a word of memory returns Result::kNotReady as long as it has to wait. It
/// is then called again, from its beginning.
using KernelBody = Result (*)(const Launch&);

/// The kernel of that name, or null.
KernelBody find_kernel(std::string_view name);

}  // namespace gcr::softgpu

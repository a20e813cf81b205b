#include "tests/softgpu/engine/copies.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace gcr::softgpu {
namespace {

constexpr std::size_t kStagedBytes = 64 * 1024;

std::size_t extent(const Block& block, std::size_t pitch) {
  return block.width == 0 || block.height == 0 ? 0 : pitch * (block.height - 1) + block.width;
}

void run(const Block& block) {
  for (std::size_t row = 0; row < block.height; ++row) {
    std::memmove(reinterpret_cast<void*>(block.to + row * block.to_pitch),
                 reinterpret_cast<const void*>(block.from + row * block.from_pitch), block.width);
  }
}

/// Whether the driver may access this end of a copy. NVIDIA's copies between devices without access
/// to each other's memory, except memory created by cuMemCreate.
bool usable(const Process& process, const Stream& stream, std::uintptr_t address, std::size_t bytes,
            Side side, int protection) {
  const Memory& memory = process.memory;
  if (bytes == 0) return true;
  if (side == Side::kHost) return address != 0;
  const RangeInfo range = memory.find(address);
  if (range.kind == RangeKind::kVmm && process.devices.vendor == Vendor::kNvidia &&
      range.ordinal != kHostOrdinal &&
      (range.access.of_device(stream.context->ordinal) & protection) == 0) {
    return false;
  }
  if (range.bytes == 0) return side == Side::kEither && address != 0;
  return memory.accessible(address, bytes, protection);
}

bool is_pageable(const Memory& memory, std::uintptr_t address) {
  return memory.find(address).bytes == 0;
}

/// Runs a block in a stream: at once on this thread if it must be complete on return.
Result submit(Process& process, Stream& stream, const Block& block, bool synchronous) {
  Context& context = *stream.context;
  const bool captured = stream.captured();
  if (synchronous && stream.kind == StreamKind::kLegacy && context.capturing()) {
    return Result::kStreamCaptureImplicit;
  }
  const Memory& memory = process.memory;
  Block work = block;
  work.to = memory.as_devices_see(block.to);
  if (!captured && !synchronous && is_pageable(memory, block.from) && block.height == 1 &&
      block.width <= kStagedBytes && !is_pageable(memory, block.to)) {
    const auto* bytes = reinterpret_cast<const std::byte*>(block.from);
    return context.submit(
        stream,
        {NodeType::kMemcpy, [to = work.to, staged = std::vector(bytes, bytes + block.width)] {
           std::memcpy(reinterpret_cast<void*>(to), staged.data(), staged.size());
           return Result::kSuccess;
         }});
  }
  if (!captured &&
      (synchronous || is_pageable(memory, block.from) || is_pageable(memory, block.to))) {
    if (const Result fault = context.synchronize(stream)) return fault;
    run(work);
    return Result::kSuccess;
  }
  return context.submit(stream, {NodeType::kMemcpy, [work] {
                                   run(work);
                                   return Result::kSuccess;
                                 }});
}

template <class T>
void fill(std::uintptr_t to, std::size_t pitch, T value, std::size_t width, std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    std::fill_n(reinterpret_cast<T*>(to + row * pitch), width, value);
  }
}

}  // namespace

Result copy_block(Process& process, Stream& stream, const Block& block, Side to, Side from,
                  bool synchronous) {
  if (!usable(process, stream, block.to, extent(block, block.to_pitch), to, PROT_WRITE) ||
      !usable(process, stream, block.from, extent(block, block.from_pitch), from, PROT_READ)) {
    return Result::kInvalidValue;
  }
  if (block.width == 0 || block.height == 0) return Result::kSuccess;
  return submit(process, stream, block, synchronous);
}

template <class T>
Result fill_rows(Process& process, Stream& stream, std::uintptr_t to, std::size_t pitch, T value,
                 std::size_t width, std::size_t height, bool synchronous) {
  const std::size_t bytes = height == 0 ? 0 : pitch * (height - 1) + width * sizeof(T);
  if (to % sizeof(T) != 0 || pitch % sizeof(T) != 0 ||
      !usable(process, stream, to, bytes, Side::kDevice, PROT_WRITE)) {
    return Result::kInvalidValue;
  }
  if (synchronous) {
    const Result fault = height > 1 && stream.context->settle_stack()
                             ? stream.context->synchronize()
                             : stream.context->synchronize(stream);
    if (fault != Result::kSuccess) return fault;
    fill(to, pitch, value, width, height);
    return Result::kSuccess;
  }
  Operation operation{NodeType::kMemset, [=] {
                        fill(to, pitch, value, width, height);
                        return Result::kSuccess;
                      }};
  operation.kernel = height > 1;
  return stream.context->submit(stream, std::move(operation));
}

template Result fill_rows(Process&, Stream&, std::uintptr_t, std::size_t, std::uint8_t, std::size_t,
                          std::size_t, bool);
template Result fill_rows(Process&, Stream&, std::uintptr_t, std::size_t, std::uint16_t,
                          std::size_t, std::size_t, bool);
template Result fill_rows(Process&, Stream&, std::uintptr_t, std::size_t, std::uint32_t,
                          std::size_t, std::size_t, bool);

}  // namespace gcr::softgpu

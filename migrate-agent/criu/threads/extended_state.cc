#include "migrate-agent/criu/threads/extended_state.h"

#include <cpuid.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace gcr::criu {
namespace {

constexpr std::size_t kHeader = 512;
constexpr std::size_t kHeaderBytes = 64;

std::uint64_t in_use(std::span<const std::byte> image) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, image.data() + kHeader, sizeof(bits));
  return bits;
}

/// The lowest number in `components`, which loses it.
unsigned next(std::uint64_t& components) {
  const auto number = static_cast<unsigned>(std::countr_zero(components));
  components &= components - 1;
  return number;
}

}  // namespace

StateLayout StateLayout::of_this_processor() {
  StateLayout layout;
  constexpr unsigned kLeaf = 13;
  constexpr unsigned kFirstExtended = 2;
  for (unsigned i = kFirstExtended; i < layout.components.size(); ++i) {
    unsigned size = 0;
    unsigned offset = 0;
    unsigned flags = 0;
    unsigned unused = 0;
    if (__get_cpuid_count(kLeaf, i, &size, &offset, &flags, &unused) == 0) break;
    const bool of_kernel = (flags & 1) != 0;
    if (size != 0 && !of_kernel) layout.components[i] = {offset, size};
  }
  return layout;
}

bool StateLayout::exceeds_criu() const {
  std::uint64_t components_here = 0;
  for (std::size_t i = 0; i < components.size(); ++i) {
    if (components[i].size != 0) components_here |= std::uint64_t{1} << i;
  }
  return (components_here & ~kCarriedByCriu) != 0;
}

ExtendedState take_state(std::span<const std::byte> image, const StateLayout& layout) {
  if (image.size() < kHeader + kHeaderBytes) return {};
  constexpr std::uint64_t kAll = (std::uint64_t{1} << 63) - 1;
  ExtendedState state;
  for (std::uint64_t left = in_use(image) & kAll & ~kCarriedByCriu; left != 0;) {
    const unsigned number = next(left);
    const auto [offset, size] = layout.components[number];
    if (size == 0 || image.size() < offset || image.size() - offset < size) continue;
    state.components |= std::uint64_t{1} << number;
    const auto bytes = image.subspan(offset, size);
    state.bytes.insert(state.bytes.end(), bytes.begin(), bytes.end());
  }
  return state;
}

Status put_state(std::span<std::byte> image, const StateLayout& layout, std::uint64_t components,
                 std::span<const std::byte> bytes) {
  if ((components & kCarriedByCriu) != 0 || components >> 63 != 0) {
    return Error(
        Code::kProtocol,
        fmt::format("components {:#x} of the extended state are carried by CRIU", components));
  }
  if (image.size() < kHeader + kHeaderBytes) {
    return Error(Code::kUnsupported, "this processor has no extended state");
  }
  std::size_t at = 0;
  for (std::uint64_t left = components; left != 0;) {
    const unsigned number = next(left);
    const auto [offset, size] = layout.components[number];
    if (size == 0 || image.size() < offset || image.size() - offset < size) {
      return Error(Code::kUnsupported,
                   fmt::format("this processor has no component {} of its state", number));
    }
    if (bytes.size() - at < size) return Error(Code::kProtocol, "the state of a thread is cut off");
    std::memcpy(image.data() + offset, bytes.data() + at, size);
    at += size;
  }
  if (at != bytes.size()) return Error(Code::kProtocol, "the state of a thread is too long");
  const std::uint64_t bits = in_use(image) | components;
  std::memcpy(image.data() + kHeader, &bits, sizeof(bits));
  return {};
}

}  // namespace gcr::criu

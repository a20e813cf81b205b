// 128-bit identifiers of migrations and GPUs.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gcr {

struct Uuid {
  std::array<std::uint8_t, 16> bytes{};

  auto operator<=>(const Uuid&) const = default;

  /// 36 characters: "6f1c...-....", lower case.
  std::string to_string() const;

  /// Parses the output of to_string(), in either case, with or without the prefix "GPU-".
  static std::optional<Uuid> parse(std::string_view text);

  /// A random (version 4) identifier from the kernel's generator.
  static Uuid random();
};

/// Returns a GPU's name as its vendor's tools write it: "GPU-6f1c...-....", or for an AMD GPU,
/// whose identifier is 16 hexadecimal digits as text, "GPU-7cf529dea4b33bad".
std::string gpu_name(const Uuid& gpu);

/// Parses the output of gpu_name(), in either case, with or without "GPU-".
std::optional<Uuid> parse_gpu(std::string_view text);

/// Returns the 16 bytes that messages and journals carry.
std::string to_bytes(const Uuid& uuid);

/// Converts back from to_bytes(); all zeros if `bytes` is not an identifier.
Uuid to_uuid(std::string_view bytes);

}  // namespace gcr

template <>
struct std::hash<gcr::Uuid> {
  std::size_t operator()(const gcr::Uuid& uuid) const noexcept {
    return std::hash<std::string_view>{}(
        {reinterpret_cast<const char*>(uuid.bytes.data()), uuid.bytes.size()});
  }
};

// 128-bit identifiers: of migrations, and of GPUs as the driver names them.
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

  /// Accepts what to_string gives, either case, with or without the "GPU-" before it.
  static std::optional<Uuid> parse(std::string_view text);

  /// A random (version 4) identifier from the kernel's generator.
  static Uuid random();
};

/// A GPU as its vendor's tools name it: "GPU-6f1c...-....", or for AMD's, whose identifier is 16
/// hexadecimal digits as text, "GPU-7cf529dea4b33bad".
std::string gpu_name(const Uuid& gpu);

/// Accepts what gpu_name gives, either case, with or without the "GPU-".
std::optional<Uuid> parse_gpu(std::string_view text);

/// As in messages and journals: 16 bytes.
std::string to_bytes(const Uuid& uuid);

/// All zeros if the bytes are not an identifier.
Uuid to_uuid(std::string_view bytes);

}  // namespace gcr

template <>
struct std::hash<gcr::Uuid> {
  std::size_t operator()(const gcr::Uuid& uuid) const noexcept {
    return std::hash<std::string_view>{}(
        {reinterpret_cast<const char*>(uuid.bytes.data()), uuid.bytes.size()});
  }
};

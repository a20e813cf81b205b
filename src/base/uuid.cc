#include "src/base/uuid.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "src/base/random.h"

namespace gcr {
namespace {

constexpr std::string_view kGpu = "GPU-";

bool is_digit(std::uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
}

}  // namespace

std::string Uuid::to_string() const {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

std::optional<Uuid> Uuid::parse(std::string_view text) {
  if (text.starts_with(kGpu)) text.remove_prefix(kGpu.size());
  if (text.size() != 36) return std::nullopt;
  Uuid uuid;
  std::size_t at = 0;
  for (auto& byte : uuid.bytes) {
    if (at == 8 || at == 13 || at == 18 || at == 23) {
      if (text[at++] != '-') return std::nullopt;
    }
    const char* first = text.data() + at;
    const auto [end, error] = std::from_chars(first, first + 2, byte, 16);
    if (error != std::errc{} || end != first + 2) return std::nullopt;
    at += 2;
  }
  return uuid;
}

Uuid Uuid::random() {
  Uuid uuid = std::bit_cast<Uuid>(random_bytes<sizeof(Uuid)>());
  uuid.bytes[6] = static_cast<std::uint8_t>((uuid.bytes[6] & 0x0f) | 0x40);
  uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

std::string gpu_name(const Uuid& gpu) {
  const bool is_text = std::ranges::all_of(gpu.bytes, is_digit);
  return std::string(kGpu) + (is_text ? to_bytes(gpu) : gpu.to_string());
}

std::optional<Uuid> parse_gpu(std::string_view text) {
  if (text.starts_with(kGpu)) text.remove_prefix(kGpu.size());
  Uuid gpu;
  if (text.size() != gpu.bytes.size()) return Uuid::parse(text);
  std::ranges::transform(text, gpu.bytes.begin(), [](char c) { return c | ('A' ^ 'a'); });
  if (!std::ranges::all_of(gpu.bytes, is_digit)) return std::nullopt;
  return gpu;
}

std::string to_bytes(const Uuid& uuid) { return {uuid.bytes.begin(), uuid.bytes.end()}; }

Uuid to_uuid(std::string_view bytes) {
  Uuid uuid;
  if (bytes.size() == uuid.bytes.size()) std::ranges::copy(bytes, uuid.bytes.begin());
  return uuid;
}

}  // namespace gcr

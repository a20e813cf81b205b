// What fuzz targets share. A target is a function over bytes, and seeds that reach deep into the
// tested code; libFuzzer drives it in the fuzz preset, corpus_main.cc feeds it files in every other
// build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// The target: handles one input, aborts if it was handled wrongly.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Understands one argument, `--write-seeds DIR`: writes the target's seeds there and exits.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace gcr::fuzz {

/// Inputs made by the project's own encoders. Each target defines it.
std::vector<std::string> seeds();

/// Ends the program, which is a finding, unless `condition` holds.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "this does not hold: " << what << std::endl;
  std::abort();
}

/// Numbers and bytes from the front of an input; zeros and nothing once it has ended.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return left_.empty(); }

  /// Little-endian.
  template <class T>
  T number() {
    std::uint64_t value = 0;
    const auto from = bytes(sizeof(T));
    for (std::size_t i = 0; i < from.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }

  std::span<const std::byte> bytes(std::size_t at_most) {
    const auto taken = left_.first(std::min(at_most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

  std::string_view text(std::size_t at_most) {
    const auto taken = bytes(at_most);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  std::span<const std::byte> rest() { return bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

/// Writes the format that Input reads.
class Script {
 public:
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T> Script& number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
    return *this;
  }
  Script& text(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  template <class Bytes>
  Script& bytes(const Bytes& bytes) {
    return text({reinterpret_cast<const char*>(std::data(bytes)), std::size(bytes)});
  }
  operator std::string() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace gcr::fuzz

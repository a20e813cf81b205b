// The software GPU's plugin for the CRIU that the tests run.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gcr::criu::test {

inline std::string content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Writes a copy that claims to be built for a CRIU with this number of hooks.
inline void copy_plugin(const std::filesystem::path& to, std::uint32_t hooks) {
  std::string bytes = content_of(GCR_SOFTGPU_PLUGIN);
  const std::uint32_t version_and_hooks[] = {2 << 8, 13};
  char pattern[sizeof(version_and_hooks)];
  std::memcpy(pattern, version_and_hooks, sizeof(pattern));
  const std::size_t at = bytes.find(pattern, 0, sizeof(pattern));
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(bytes.find(pattern, at + 1, sizeof(pattern)), std::string::npos);
  std::memcpy(bytes.data() + at + sizeof(std::uint32_t), &hooks, sizeof(hooks));
  std::ofstream(to, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace gcr::criu::test

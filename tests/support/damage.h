// Files that a disk has damaged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace gcr::test {

/// Changes every bit of one byte: another value might be the original one.
inline void damage_byte(const std::filesystem::path& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int was = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(~was));
  if (!file.flush()) throw std::runtime_error("cannot change " + path.native());
}

}  // namespace gcr::test

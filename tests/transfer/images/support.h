// What the tests of images share: contents, and a directory on tmpfs with a store in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "migrate-agent/transfer/images/scratch.h"
#include "migrate-agent/transfer/images/store.h"

namespace gcr::images::test {

/// Random bytes.
inline std::string noise(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size + 8, '\0');
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = random();
    bytes.replace(at, 8, reinterpret_cast<const char*>(&word), 8);
  }
  bytes.resize(size);
  return bytes;
}

/// Bytes that compress well and contain no page of zeros.
inline std::string text(std::size_t size, std::uint64_t seed) {
  std::string bytes;
  for (std::uint64_t line = seed; bytes.size() < size; ++line) {
    bytes += "the line with number " + std::to_string(line) + " of many such lines\n";
  }
  bytes.resize(size);
  return bytes;
}

class StoreFixture : public ::testing::Test {
 protected:
  std::unique_ptr<ImageStore> make_store(unsigned slots, std::uint64_t max_bytes = 1 * kGiB) {
    auto store = ImageStore::create(directory_.path(), slots, max_bytes);
    EXPECT_TRUE(store) << store.error().message();
    return std::move(*store);
  }

  std::string received(const std::string& name) const {
    std::ifstream file(directory_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::filesystem::path unique_path() {
    static std::atomic<int> count = 0;
    return "/dev/shm/gcr-images-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  }

  ScratchDirectory directory_ = *ScratchDirectory::create(unique_path());
};

}  // namespace gcr::images::test

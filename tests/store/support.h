// What the tests of the store share: a directory, an agent's certificates, and checkpoints of
// generated chunks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "store/upkeep.h"
#include "store/writer.h"
#include "tests/src/control/peers.h"

namespace gcr::store::test {

using Bytes = std::vector<std::byte>;
using Chunks = std::vector<Bytes>;

/// A new directory, removed with everything in it.
class Folder {
 public:
  explicit Folder(const std::string& parent = std::filesystem::temp_directory_path());
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The same for the same seed, and incompressible. Cached. Any thread.
const Bytes& noise(std::uint64_t seed, std::size_t size_bytes = kChunkBytes);

Owner this_user();
Bytes read_file(const std::filesystem::path& file);
void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes);

/// Fake digests: equal for equal chunks.
std::string digest_of(const Bytes& chunk);

/// A manifest whose only buffer has these whole chunks, and whose only image has them one after the
/// other. Adds all of them.
Result<proto::Manifest> describe(Writer& writer, const Chunks& chunks);

class Store : public testing::Test {
 protected:
  Directory directory() const;
  Writer::Options options(const std::string& name) const;
  std::unique_ptr<Writer> writer(const std::string& name) const;

  /// Writes and publishes one; each is a second younger than the one before.
  proto::Manifest take(const std::string& name, const Chunks& chunks,
                       const std::string& command = "train");
  proto::Manifest read(const std::string& name) const;

  /// Fails the test unless the checkpoint has exactly these chunks, read through packs.
  void expect_has(const std::string& name, const Chunks& chunks) const;
  /// Fails the test if there is any file except those of published checkpoints.
  void expect_nothing_left_over() const;

  std::vector<std::filesystem::path> packs() const;
  std::uint64_t pack_bytes() const;
  std::filesystem::path manifest_file(const std::string& name) const {
    return path_ / file_of(name);
  }

  Owner owner_ = this_user();
  Folder folder_;
  std::filesystem::path path_ = folder_.path() / "store";
  control::test::Credentials credentials_;
  control::TlsFiles tls_ = credentials_.issue({.common_name = "node1"});
  std::int64_t now_ms_ = 1'000;
};

}  // namespace gcr::store::test

// Two containers of one image, and rounds from one to the other.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/process/layer/apply.h"
#include "migrate-agent/process/layer/changes.h"
#include "migrate-agent/process/layer/pack_writer.h"
#include "migrate-agent/process/layer/snapshot.h"
#include "migrate-agent/process/layer/tree.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/process/layer/container.h"
#include "tests/process/layer/listing.h"

namespace gcr::layer::test {

inline constexpr Limits kLimits{64 * kMiB};

class TwoContainers : public testing::Test {
 protected:
  /// Makes the image: files, directories, links, some of each.
  TwoContainers();

  /// Starts both containers. `overlay`: further options, with a comma before each.
  void start(const ContainerOptions& source, const ContainerOptions& destination);
  void start(const std::string& overlay = "");

  /// Trees of both at this point. A test failure if there is none.
  void use_tree(const std::string& point);

  /// One round; the first takes all.
  Result<Notes> carry(const KnownFiles& known = {});

  /// What a scan now has to send.
  Changes next_changes(const KnownFiles& known = {}) const;

  /// A pack in a file; read from its beginning.
  Result<UniqueFd> pack(const Changes& changes, std::uint64_t max_bytes = kLimits.max_bytes) const;

  std::filesystem::path at_source(const std::string& path) const { return source_->root() / path; }
  std::filesystem::path at_destination(const std::string& path) const {
    return destination_->root() / path;
  }

  /// Sets an extended attribute of a file of the source.
  void set(const std::string& path, const std::string& name, const std::string& value) const;

  /// Why a scan fails; "" if it does not.
  std::string refusal() const;

  void expect_carried();
  void expect_same() const;

  const Machine machine_;
  const std::filesystem::path image_ = machine_.path() / "image";
  std::unique_ptr<Container> source_, destination_;
  Trees from_, to_;
  std::string point_ = "/";
  Snapshot before_;
  int pairs_ = 0;  ///< of containers, started so far
};

/// An unnamed file in memory.
UniqueFd memory_file();

/// The content of a file.
std::string read(const std::filesystem::path& path);

}  // namespace gcr::layer::test

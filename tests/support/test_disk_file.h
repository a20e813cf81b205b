// The parts of a Disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test_disk.h"

namespace gcr::test {

/// A file or a directory, as it is and as a power failure leaves it.
struct Disk::File {
  /// Names that change together; no file: the name is removed.
  using Change = std::vector<std::pair<std::string, FilePtr>>;

  mode_t mode = 0;
  uid_t uid = 0;
  gid_t gid = 0;

  std::vector<char> bytes, durable;
  const Mount* writer = nullptr;  ///< the last one
  std::optional<std::uint64_t> flipped, reads_end;
  int read_error = 0;

  std::map<std::string, FilePtr> entries, durable_entries;
  std::vector<Change> changes;  ///< of entries, that are not durable

  unsigned open = 0;
  unsigned links = 0;
  const Mount* removed_by = nullptr;
  const Handle* locked_by = nullptr;

  /// Of it and all below it.
  std::uint64_t used_bytes() const {
    std::uint64_t used = bytes.size();
    for (const auto& [name, file] : entries) used += file->used_bytes();
    return used;
  }

  void apply(const Change& change) {
    for (const auto& [name, file] : change) {
      if (file == nullptr) {
        durable_entries.erase(name);
      } else {
        durable_entries[name] = file;
      }
    }
  }

  void sync() {
    for (const Change& change : changes) apply(change);
    changes.clear();
    durable = bytes;
  }
};

/// An open file.
struct Disk::Handle {
  FilePtr file;
  unsigned restarts = 0;  ///< when it was opened
  int error = 0;          ///< of a close, that no sync has reported yet
};

}  // namespace gcr::test

// CRIU's image files on their way: the source sends them from its tmpfs, the destination maps files
// of its own for them. Runs of zeros are not sent: the destination's files start as holes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/channel.h"

namespace gcr::agent {

/// A directory that is removed with everything in it when its owner is destroyed. Move-only.
class ScratchDirectory {
 public:
  /// Creates `path` (and its parents), readable by root alone. kIo if it exists.
  static Result<ScratchDirectory> create(const std::filesystem::path& path);
  ScratchDirectory(ScratchDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::filesystem::path{})) {}
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

struct ImageFile {
  std::string name;
  std::uint64_t size_bytes = 0;
};

/// The regular files of a dump's directory, by name. CRIU's logs stay behind.
Result<std::vector<ImageFile>> list_images(const std::filesystem::path& directory);

/// Sends each file to the region of the same index with up to `threads` writes at once, then
/// flushes. Returns the bytes sent.
Result<std::uint64_t> send_images(transport::Channel& channel,
                                  const std::filesystem::path& directory,
                                  const std::vector<ImageFile>& files,
                                  const std::vector<transport::RegionId>& regions,
                                  unsigned threads);

/// Creates the file `name` of `size_bytes` zeros in `directory` and maps it for writing. The name
/// comes from a peer: kProtocol unless it is a plain file name.
Result<UniqueMapping> create_image(const std::filesystem::path& directory, const ImageFile& file);

}  // namespace gcr::agent

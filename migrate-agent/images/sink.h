// Where the images of a dump go, while CRIU writes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "migrate-agent/images/codec.h"
#include "migrate-agent/images/image_digest.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::images {

struct SentImages {
  std::vector<ImageFile> files;
  std::uint64_t raw_bytes = 0;   ///< as CRIU wrote them
  std::uint64_t zero_bytes = 0;  ///< of these, in pages of zeros
  std::uint64_t sent_bytes = 0;  ///< with headers
  Codec codec = Codec::kNone;    ///< that of most blocks
};

class Sink {
 public:
  virtual ~Sink() = default;

  /// Sends `content` from its current offset to its end. Returns when all of it is read; parts of
  /// it may not have landed yet. Thread-safe. After an error every later call fails with it.
  virtual Status take(const std::string& name, UniqueFd content) = 0;

  /// Returns when everything from take() is in place. No take() may be under way. May be called
  /// again after further files; counts and files are those of all calls.
  virtual Result<SentImages> finish() = 0;
};

/// take() for every image (*.img) in `directory`, under `prefix` ("pre-1/", or nothing).
Status take_directory(Sink& sink, const std::string& directory, const std::string& prefix);

}  // namespace gcr::images

// Sends images from the source: from descriptors, while CRIU writes them, into slots of the
// destination's ring. Pages of zeros are not sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/images/codec.h"
#include "migrate-agent/images/image_digest.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/channel.h"

namespace gcr::images {

/// One image that was sent whole.
struct SentFile {
  std::string name;
  std::uint32_t id = 0;
  std::uint64_t size_bytes = 0;
  ImageDigest digest = {};
};

struct SentImages {
  std::vector<SentFile> files;
  std::uint64_t raw_bytes = 0;   ///< as CRIU wrote them
  std::uint64_t zero_bytes = 0;  ///< of these, in pages of zeros
  std::uint64_t sent_bytes = 0;  ///< with headers
  Codec codec = Codec::kNone;    ///< that of most blocks
};

struct SenderOptions {
  transport::RegionId region = 0;
  std::uint64_t region_bytes = 0;  ///< at least one slot (block.h)
  Compression compression = Compression::kAuto;
  double link_bytes_per_s = 0;         ///< as measured; 0: unknown
  std::array<std::byte, 32> secret{};  ///< of the migration; the destination's store has the same
};

/// Sends images from as many threads as call take(), over as many lanes as the channel has. Slots
/// are written again only after a flush: a destination that does not keep up blocks the sender.
class ImageSender {
 public:
  /// `channel` must outlive this object. kInvalidArgument if the region has no slot. Starts
  /// threads.
  static Result<std::unique_ptr<ImageSender>> create(transport::Channel& channel,
                                                     const SenderOptions& options);
  /// Waits for writes under way; cancel the channel to interrupt them.
  ~ImageSender();

  /// Sends `content` from its current offset to its end. Returns when all of it is read; parts of
  /// it may not have landed yet. Thread-safe. After an error every later call fails with it.
  Status take(const std::string& name, UniqueFd content);

  /// Returns when everything from take() is in place at the destination. No take() may be under
  /// way. May be called again after further files; counts and files are those of all calls.
  Result<SentImages> finish();

 private:
  struct Impl;
  explicit ImageSender(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// take() for every image (*.img) in `directory`, under `prefix` ("pre-1/", or nothing).
Status take_directory(ImageSender& sender, const std::string& directory, const std::string& prefix);

}  // namespace gcr::images

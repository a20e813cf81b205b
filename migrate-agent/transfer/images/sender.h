// Sends images from the source into slots of the destination's ring: from descriptors, while CRIU
// writes them, and from memory. Pages of zeros are not sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "migrate-agent/transfer/images/sink.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "store/codec.h"
#include "transport/channel.h"

namespace gcr::images {

struct SenderOptions {
  transport::RegionId region = 0;
  std::uint64_t region_bytes = 0;  ///< at least one slot (block.h)
  store::Compression compression = store::Compression::kAuto;
  double link_bytes_per_s = 0;         ///< as measured; 0: unknown
  std::array<std::byte, 32> secret{};  ///< of the migration; the destination's store has the same
};

/// Sends images from as many threads as call take(), over as many lanes as the channel has; reads
/// memory in the threads that send it. Slots are written again only after a flush: a destination
/// that does not keep up blocks the sender.
class ImageSender : public Sink {
 public:
  /// `channel` must outlive this object. kInvalidArgument if the region has no slot. Starts
  /// threads.
  static Result<std::unique_ptr<ImageSender>> create(transport::Channel& channel,
                                                     const SenderOptions& options);
  /// Waits for writes under way; cancel the channel to interrupt them.
  ~ImageSender() override;

  Status take(const std::string& name, UniqueFd content) override;
  Status take_memory(const std::string& name, std::span<const AddressRange> ranges,
                     const ReadMemory& read, bool last) override;
  Result<SentImages> finish() override;

  /// As take(), of what is at offsets 0 to `size_bytes` of `content`, which is read by several
  /// threads.
  Status take_content(const std::string& name, std::uint64_t size_bytes, const ReadMemory& content);

 private:
  struct Impl;
  explicit ImageSender(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::images

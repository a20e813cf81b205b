// A checkpoint that is loaded: what it says of a job, and its bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "migrate-agent/transfer/images/sender.h"
#include "proto/checkpoint.pb.h"
#include "store/manifest.h"
#include "store/pack.h"
#include "transport/channel.h"

namespace gcr::migration {

class StoredJob {
 public:
  /// By the buffer's id.
  using Regions = std::map<std::uint64_t, transport::RegionId>;

  /// The manifest was verified. `directory` need not live longer.
  static Result<StoredJob> open(const store::Directory& directory, proto::Manifest manifest);

  const proto::Manifest& manifest() const { return manifest_; }

  /// Sends VRAM into the regions of its buffers, by buffer, with several threads; adds to `request`
  /// the digests that it had when the checkpoint was taken, under the manifest's key. Every byte is
  /// proven by its content's name first.
  Status send_vram(transport::Channel& channel, const Regions& regions,
                   proto::RestoreRequest& request) const;

  /// Sends CRIU's images and the memories of members.
  Status send_images(images::ImageSender& sender) const;

  /// Sends the image of that name, which is none of CRIU's. kDataLoss if there is none.
  Status send_image(const std::string& name, images::ImageSender& sender) const;

 private:
  StoredJob(proto::Manifest manifest, std::unique_ptr<store::Packs> packs);

  Status read(std::uint32_t content, std::span<std::byte> out) const;
  Status send(const proto::StoredImage& image, images::ImageSender& sender) const;
  Status send_memory(const proto::StoredImage& memory, images::ImageSender& sender) const;
  Status read_at(const proto::StoredImage& image, std::uint64_t offset,
                 std::span<std::byte> out) const;

  proto::Manifest manifest_;
  store::Key key_{};
  std::unique_ptr<store::Packs> packs_;
};

}  // namespace gcr::migration

// A job in a checkpoint that is being restored: its description and its data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "migrate-agent/gpu/mover/chunk_sender.h"
#include "migrate-agent/transfer/images/sender.h"
#include "proto/checkpoint.pb.h"
#include "store/pack.h"

namespace gcr::migration {

class StoredJob {
 public:
  /// Opens the data. The caller has verified the manifest. `directory` need not live longer.
  static Result<StoredJob> open(const store::Directory& directory, proto::Manifest manifest);

  const proto::Manifest& manifest() const { return manifest_; }

  /// Adds the digests of VRAM at the time of the checkpoint, under the manifest's key.
  void add_digests(proto::RestoreRequest& request) const;

  /// Sends VRAM into the `regions` of its buffers. Each content is verified by its name first.
  Status send_vram(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions,
                   mover::ChunkTarget& target) const;

  /// Sends the CRIU images and the memory of the members.
  Status send_images(images::ImageSender& sender) const;

  /// Sends the image `name`, which is not a CRIU image. kDataLoss if there is none.
  Status send_image(const std::string& name, images::ImageSender& sender) const;

 private:
  StoredJob(proto::Manifest manifest, std::unique_ptr<store::Packs> packs);

  Status read(std::uint32_t content, std::span<std::byte> out) const;
  Status read_vram(unsigned threads, const mover::ChunkSink& sink) const;
  Status send(const proto::StoredImage& image, images::ImageSender& sender) const;
  Status read_at(const proto::StoredImage& image, std::uint64_t offset,
                 std::span<std::byte> out) const;

  proto::Manifest manifest_;
  store::Key key_{};
  std::unique_ptr<store::Packs> packs_;
};

}  // namespace gcr::migration

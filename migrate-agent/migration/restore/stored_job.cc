#include "migrate-agent/migration/restore/stored_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "migrate-agent/process/memory_files/incoming.h"
#include "src/base/address_ranges.h"
#include "src/base/raw_bytes.h"
#include "src/base/side_by_side.h"

namespace gcr::migration {
namespace {

std::uint64_t end_of(const proto::Extent& extent) { return extent.offset() + extent.bytes(); }

/// The address ranges that a stored memory has.
AddressRanges ranges_of(const proto::StoredImage& memory) {
  AddressRanges ranges;
  for (const proto::Extent& extent : memory.extents()) {
    append(ranges, {extent.offset(), end_of(extent)});
  }
  return ranges;
}

}  // namespace

StoredJob::StoredJob(proto::Manifest manifest, std::unique_ptr<store::Packs> packs)
    : manifest_(std::move(manifest)), packs_(std::move(packs)) {
  std::memcpy(key_.data(), manifest_.content_key().data(), key_.size());
}

Result<StoredJob> StoredJob::open(const store::Directory& directory, proto::Manifest manifest) {
  GCR_ASSIGN(auto packs, store::Packs::open(directory));
  return StoredJob(std::move(manifest), std::move(packs));
}

/// Reads a whole content.
Status StoredJob::read(std::uint32_t content, std::span<std::byte> out) const {
  store::ContentName name;
  std::memcpy(name.data(), manifest_.content_names().data() + content * name.size(), name.size());
  return packs_->read(key_, name, out);
}

void StoredJob::add_digests(proto::RestoreRequest& request) const {
  for (const proto::StoredBuffer& buffer : manifest_.vram()) {
    proto::BufferDigests& digests = *request.add_digests();
    digests.set_buffer_id(buffer.buffer_id());
    digests.set_digests(buffer.digests());
  }
}

/// Passes all stored chunks to `sink`; chunks of zeros are not stored.
Status StoredJob::read_vram(unsigned threads, const mover::ChunkSink& sink) const {
  struct Stored {
    mover::ChunkRef chunk;
    std::uint32_t content;
    digest::Digest digest;
  };
  std::vector<Stored> stored;
  for (int i = 0; i < manifest_.vram_size(); ++i) {
    const proto::StoredBuffer& buffer = manifest_.vram(i);
    for (const mover::ChunkRef& chunk :
         mover::chunks_of({buffer.buffer_id()}, manifest_.buffers(i).size_bytes())) {
      const std::uint32_t content = buffer.contents(static_cast<int>(chunk.number()));
      if (content == 0) continue;
      stored.push_back({chunk, content - 1, mover::digest_at(buffer.digests(), chunk.number())});
    }
  }
  return share_out(stored.size(), threads, [&](std::size_t i) -> Status {
    thread_local RawBytes memory(kChunkBytes);
    const auto& [chunk, content, digest] = stored[i];
    const auto bytes = std::span(memory).first(chunk.length_bytes);
    GCR_TRY(read(content, bytes));
    return sink(chunk, digest, bytes);
  });
}

Status StoredJob::send_vram(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions,
                            mover::ChunkTarget& target) const {
  std::array<std::byte, 32> secret{};
  std::memcpy(secret.data(), manifest_.digest_key().data(), secret.size());
  mover::ChunkSender sender(digest::DigestKey::expand(secret));
  for (const proto::Buffer& buffer : manifest_.buffers()) {
    sender.add({buffer.id()}, buffer.size_bytes());
  }
  GCR_TRY(sender.assign(regions));
  const auto source = [this](unsigned threads, const mover::ChunkSink& sink) {
    return read_vram(threads, sink);
  };
  GCR_TRY(sender.send(source, target));
  return {};
}

/// Fills `out` with the bytes of the image at `offset`.
Status StoredJob::read_at(const proto::StoredImage& image, std::uint64_t offset,
                          std::span<std::byte> out) const {
  thread_local RawBytes content(store::kMaxContentBytes);
  std::ranges::fill(out, std::byte{0});
  const std::uint64_t end = offset + out.size();
  auto extent = std::ranges::upper_bound(image.extents(), offset, {}, end_of);
  for (; extent != image.extents().end() && extent->offset() < end; ++extent) {
    const auto whole =
        std::span(content).first(manifest_.content_bytes(static_cast<int>(extent->content())));
    GCR_TRY(read(extent->content(), whole));
    const std::uint64_t from = std::max(offset, extent->offset());
    const std::uint64_t to = std::min(end, end_of(*extent));
    std::memcpy(out.data() + (from - offset),
                whole.data() + extent->from() + (from - extent->offset()), to - from);
  }
  return {};
}

Status StoredJob::send(const proto::StoredImage& image, images::ImageSender& sender) const {
  return sender.take_content(image.name(), image.size_bytes(),
                             [&](std::uint64_t offset, std::span<std::byte> bytes) {
                               return read_at(image, offset, bytes);
                             });
}

Status StoredJob::send_images(images::ImageSender& sender) const {
  std::set<std::string> files;
  for (int place = 0; place < manifest_.files().files_size(); ++place) {
    files.insert(memory_files::image_name(static_cast<std::size_t>(place)));
  }
  for (const proto::StoredImage& memory : manifest_.memories()) {
    const auto read_it = [&](std::uint64_t address, std::span<std::byte> bytes) {
      return read_at(memory, address, bytes);
    };
    GCR_TRY(sender.take_memory(memory.name(), ranges_of(memory), read_it, true));
  }
  for (const proto::StoredImage& image : manifest_.images()) {
    if (!files.contains(image.name())) GCR_TRY(send(image, sender));
  }
  return {};
}

Status StoredJob::send_image(const std::string& name, images::ImageSender& sender) const {
  const auto image = std::ranges::find(manifest_.images(), name, &proto::StoredImage::name);
  if (image == manifest_.images().end()) {
    return Error(Code::kDataLoss, fmt::format("the checkpoint lacks {}", name));
  }
  return send(*image, sender);
}

}  // namespace gcr::migration

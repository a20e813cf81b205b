// Consistency checks of a manifest. It comes from a trusted agent, but code that uses it relies on
// these checks instead of making its own.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "src/base/units.h"
#include "store/manifest.h"
#include "store/pack.h"

namespace gcr::store {
namespace {

constexpr std::size_t kNameBytes = sizeof(ContentName);
constexpr int kMaxImages = 1 << 20;
constexpr std::size_t kMaxImageName = 4096;
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();

Error wrong(std::string what) {
  return Error(Code::kDataLoss, "the manifest is not consistent: " + std::move(what));
}

Status check_head(const proto::Manifest& manifest) {
  if (manifest.format() != kFormat) {
    return Error(Code::kUnsupported,
                 fmt::format("it has format {}, and this release supports format {}",
                             manifest.format(), kFormat));
  }
  if (!is_name(manifest.name())) return wrong("its name is not valid");
  if (manifest.checkpoint_id().size() != Uuid().bytes.size() ||
      to_uuid(manifest.checkpoint_id()) == Uuid()) {
    return wrong("its id is not valid");
  }
  if (manifest.content_key().size() != kNameBytes || manifest.digest_key().size() != kNameBytes) {
    return wrong(fmt::format("a key does not have {} bytes", kNameBytes));
  }
  return {};
}

Status check_contents(const proto::Manifest& manifest) {
  const std::size_t count = static_cast<std::size_t>(manifest.content_bytes_size());
  const std::string_view names = manifest.content_names();
  if (names.size() % kNameBytes != 0 || names.size() / kNameBytes != count) {
    return wrong(fmt::format("{} contents have {} bytes of names", count, names.size()));
  }
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bytes = manifest.content_bytes(static_cast<int>(i));
    if (bytes == 0 || bytes > kMaxContentBytes) {
      return wrong(fmt::format("content {} has {} bytes", i, bytes));
    }
    if (!seen.insert(names.substr(i * kNameBytes, kNameBytes)).second) {
      return wrong(fmt::format("content {} is listed twice", i));
    }
  }
  return {};
}

Status check_buffer(const proto::Manifest& manifest, const proto::Buffer& buffer,
                    const proto::StoredBuffer& stored) {
  const std::uint64_t size = buffer.size_bytes();
  const std::uint64_t chunks = size / kChunkBytes + (size % kChunkBytes != 0 ? 1 : 0);
  if (stored.digests().size() % kDigestBytes != 0 ||
      stored.digests().size() / kDigestBytes != chunks ||
      static_cast<std::uint64_t>(stored.contents_size()) != chunks) {
    return wrong(fmt::format("buffer {} of {} bytes has {} bytes of digests and {} contents",
                             buffer.id(), size, stored.digests().size(), stored.contents_size()));
  }
  for (int chunk = 0; chunk < stored.contents_size(); ++chunk) {
    const std::uint32_t place = stored.contents(chunk);  // 1 + index; 0: zeros
    if (place == 0) continue;
    const std::uint64_t from = static_cast<std::uint64_t>(chunk) * kChunkBytes;
    const std::uint64_t length = std::min<std::uint64_t>(kChunkBytes, size - from);
    if (place > static_cast<std::uint32_t>(manifest.content_bytes_size()) ||
        manifest.content_bytes(static_cast<int>(place - 1)) != length) {
      return wrong(fmt::format("chunk {} of buffer {} refers to no content of its length", chunk,
                               buffer.id()));
    }
  }
  return {};
}

Status check_buffers(const proto::Manifest& manifest) {
  if (manifest.buffers_size() != manifest.vram_size() ||
      manifest.buffers_size() > static_cast<int>(kMaxBuffers)) {
    return wrong(fmt::format("it has {} buffers and the contents of {}", manifest.buffers_size(),
                             manifest.vram_size()));
  }
  std::unordered_set<std::uint64_t> ids;
  for (int i = 0; i < manifest.buffers_size(); ++i) {
    const proto::Buffer& buffer = manifest.buffers(i);
    if (buffer.id() != manifest.vram(i).buffer_id() || !ids.insert(buffer.id()).second) {
      return wrong(fmt::format(
          "buffer {} is listed twice, or its contents belong to another buffer", buffer.id()));
    }
    GCR_TRY(check_buffer(manifest, buffer, manifest.vram(i)));
  }
  return {};
}

/// Checks an image. The image of a memory has no size, because its offsets are addresses.
Status check_image(const proto::Manifest& manifest, const proto::StoredImage& image,
                   bool is_memory) {
  const std::uint64_t end = is_memory ? kMaxOffset : image.size_bytes();
  if (image.name().empty() || image.name().size() > kMaxImageName || end > kMaxOffset ||
      (is_memory && image.size_bytes() != 0)) {
    return wrong("an image has an invalid name or size");
  }
  std::uint64_t last = 0;
  for (const proto::Extent& extent : image.extents()) {
    const std::uint64_t offset = extent.offset();
    const bool is_placed = offset >= last && offset <= end && extent.bytes() <= end - offset;
    const bool is_content =
        extent.content() < static_cast<std::uint32_t>(manifest.content_bytes_size());
    if (extent.bytes() == 0 || !is_placed || !is_content ||
        std::uint64_t{extent.from()} + extent.bytes() >
            manifest.content_bytes(static_cast<int>(extent.content()))) {
      return wrong(
          fmt::format("an image has an invalid extent of {} bytes at {}", extent.bytes(), offset));
    }
    last = offset + extent.bytes();
  }
  return {};
}

Status check_images(const proto::Manifest& manifest) {
  if (manifest.images_size() > kMaxImages || manifest.memories_size() > kMaxImages) {
    return wrong(fmt::format("it has more than {} images", kMaxImages));
  }
  for (const bool is_memory : {false, true}) {
    std::unordered_set<std::string_view> names;
    for (const auto& image : is_memory ? manifest.memories() : manifest.images()) {
      GCR_TRY(check_image(manifest, image, is_memory));
      if (!names.insert(image.name()).second) return wrong("two images have the same name");
    }
  }
  return {};
}

/// Checks what the job's container has for itself: its packs are among the images, each once.
Status check_layers(const proto::Manifest& manifest) {
  std::unordered_set<std::string_view> images;
  for (const proto::StoredImage& image : manifest.images()) images.insert(image.name());
  std::unordered_set<std::string_view> points;
  for (const proto::Layer& layer : manifest.layers()) {
    if (!layer.point().starts_with('/') || layer.point().size() > kMaxImageName ||
        !points.insert(layer.point()).second) {
      return wrong("a layer has an invalid mount point");
    }
    for (const std::string& pack : layer.packs()) {
      if (images.erase(pack) == 0) return wrong("a layer has a pack that is not one of its images");
    }
  }
  if (manifest.layers().empty() || manifest.job().has_from_container()) return {};
  return wrong("it has layers, but its job is from no container");
}

}  // namespace

Status check_manifest(const proto::Manifest& manifest) {
  GCR_TRY(check_head(manifest));
  GCR_TRY(check_contents(manifest));
  GCR_TRY(check_buffers(manifest));
  GCR_TRY(check_images(manifest));
  return check_layers(manifest);
}

Result<proto::Manifest> parse_body(std::span<const std::byte> body) {
  proto::Manifest manifest;
  if (body.size() > std::numeric_limits<int>::max() ||
      !manifest.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return Error(Code::kDataLoss, "the manifest cannot be parsed");
  }
  GCR_TRY(check_manifest(manifest));
  return manifest;
}

}  // namespace gcr::store

// Bodies of manifests, as if an agent had signed them: an accepted one is consistent.
#include <google/protobuf/stubs/logging.h>

#include "store/manifest.h"
#include "store/pack_format.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::store;

std::uint32_t content_bytes(const proto::Manifest& manifest, std::uint32_t place) {
  require(place < static_cast<std::uint32_t>(manifest.content_bytes_size()), "places are in range");
  return manifest.content_bytes(static_cast<int>(place));
}

void check_buffers(const proto::Manifest& manifest) {
  require(manifest.buffers_size() == manifest.vram_size(), "each buffer has its contents");
  for (int i = 0; i < manifest.vram_size(); ++i) {
    std::uint64_t from = 0;
    for (const std::uint32_t content : manifest.vram(i).contents()) {
      const std::uint64_t rest = manifest.buffers(i).size_bytes() - from;
      const std::uint64_t length = std::min<std::uint64_t>(rest, kChunkBytes);
      if (content != 0) {
        require(content_bytes(manifest, content - 1) == length, "a chunk has its length");
      }
      from += length;
    }
    require(from == manifest.buffers(i).size_bytes(), "chunks cover the buffer");
    require(manifest.vram(i).digests().size() ==
                kDigestBytes * static_cast<std::size_t>(manifest.vram(i).contents_size()),
            "each chunk has a digest");
  }
}

void check_image(const proto::Manifest& manifest, const proto::StoredImage& image, bool is_memory) {
  std::uint64_t end = 0;
  for (const proto::Extent& extent : image.extents()) {
    require(extent.bytes() > 0 && extent.offset() >= end, "extents ascend");
    end = extent.offset() + extent.bytes();
    require(end > extent.offset() && (is_memory || end <= image.size_bytes()), "and are inside");
    require(
        std::uint64_t{extent.from()} + extent.bytes() <= content_bytes(manifest, extent.content()),
        "and within their contents");
  }
}

void take(std::span<const std::byte> body) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  const auto manifest = parse_body(body);
  if (!manifest) return;
  require(is_name(manifest->name()), "it has a name");
  require(manifest->content_names().size() ==
              sizeof(ContentName) * static_cast<std::size_t>(manifest->content_bytes_size()),
          "each content has a name");
  check_buffers(*manifest);
  for (const auto& image : manifest->images()) check_image(*manifest, image, false);
  for (const auto& image : manifest->memories()) check_image(*manifest, image, true);
}

proto::Manifest small() {
  proto::Manifest manifest;
  manifest.set_format(kFormat);
  manifest.set_checkpoint_id("0123456789abcdef");
  manifest.set_name("2026-11-25T10-00-00.123-4711");
  manifest.set_content_key(std::string(32, 'k'));
  manifest.set_digest_key(std::string(32, 'd'));
  manifest.set_content_names(std::string(32, 'a') + std::string(32, 'b'));
  manifest.add_content_bytes(kMaxContentBytes);
  manifest.add_content_bytes(100);
  return manifest;
}

}  // namespace

std::vector<std::string> seeds() {
  proto::Manifest full = small();
  full.add_buffers()->set_id(1);
  full.mutable_buffers(0)->set_size_bytes(2 * kChunkBytes);
  full.add_vram()->set_buffer_id(1);
  full.mutable_vram(0)->set_digests(std::string(32, 'x'));
  full.mutable_vram(0)->add_contents(1);
  full.mutable_vram(0)->add_contents(0);
  full.add_images()->set_name("core-1.img");
  full.mutable_images(0)->set_size_bytes(100);
  proto::Extent& extent = *full.mutable_images(0)->add_extents();
  extent.set_bytes(50);
  extent.set_offset(50);
  extent.set_content(1);
  extent.set_from(50);
  proto::StoredImage& memory = *full.add_memories();
  memory.set_name("memory-1");
  *memory.add_extents() = extent;
  return {small().SerializeAsString(), full.SerializeAsString()};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take(std::as_bytes(std::span(data, size)));
  return 0;
}

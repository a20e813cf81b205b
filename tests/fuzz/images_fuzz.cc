// Blocks of images and the names of their files, as the destination handles them. Only regular
// files below its directory are written.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "migrate-agent/transfer/images/scratch.h"
#include "migrate-agent/transfer/images/store.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::images;

constexpr unsigned kRingSlots = 2;
constexpr std::uint64_t kMaxBytes = 16 * kMiB;

enum Step : std::uint8_t { kRawBlock = 0, kBlock = 1, kName = 2, kSteps = 3 };

/// A header with its numbers from the input. The stored length is usually the payload's own.
BlockHeader header_of(Input& input, std::size_t payload_bytes) {
  BlockHeader header{.file = input.number<std::uint32_t>(),
                     .offset = std::uint64_t{input.number<std::uint16_t>()} * kWindowBytes,
                     .raw_bytes = input.number<std::uint32_t>(),
                     .stored_bytes = static_cast<std::uint32_t>(payload_bytes),
                     .codec = static_cast<store::Codec>(input.number<std::uint8_t>() % 5),
                     .present = PresentPages(input.number<std::uint64_t>())};
  if (input.number<std::uint8_t>() == 0xff) header.stored_bytes = input.number<std::uint32_t>();
  return header;
}

void land(ImageStore& store, std::uint64_t offset, std::span<const std::byte> header,
          std::span<const std::byte> payload) {
  const std::size_t length = header.size() + payload.size();
  if (offset < store.ring().size() && length <= store.ring().size() - offset) {
    const auto landing = store.ring().subspan(offset, length);
    std::ranges::copy(header, landing.begin());
    std::ranges::copy(payload, landing.subspan(header.size()).begin());
  }
  (void)store.landed(offset, length);
}

void check_files(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    require(entry.is_symlink() ? name == "parent" : entry.is_directory() || entry.is_regular_file(),
            "files, directories, and links to parents");
  }
}

void take(Input input) {
  static int runs = 0;
  const std::string path =
      "/dev/shm/gcr-fuzz-" + std::to_string(::getpid()) + "-" + std::to_string(++runs);
  const auto directory = ScratchDirectory::create(path);
  require(bool(directory), "a directory");
  auto store = ImageStore::create(directory->path(), kRingSlots, kMaxBytes);
  require(bool(store), "a store");
  std::vector<ImageFile> files;
  while (!input.empty()) {
    const auto step = input.number<std::uint8_t>() % kSteps;
    const std::uint64_t slot = input.number<std::uint8_t>() % (kRingSlots + 1) * kSlotBytes;
    const auto some = input.bytes(input.number<std::uint16_t>());
    if (step == kRawBlock) {
      land(**store, slot, {}, some);
    } else if (step == kBlock) {
      land(**store, slot, encode(header_of(input, some.size())), some);
    } else {
      const std::string name(reinterpret_cast<const char*>(some.data()), some.size());
      files.push_back({name, input.number<std::uint32_t>(), input.number<std::uint64_t>()});
    }
  }
  (void)(*store)->complete(files);
  check_files(directory->path());
}

std::string block(std::uint32_t file, std::string_view payload, std::size_t raw_bytes,
                  store::Codec codec, const PresentPages& pages) {
  return Script()
      .number(kBlock)
      .number<std::uint8_t>(file % kRingSlots)
      .number(static_cast<std::uint16_t>(payload.size()))
      .text(payload)
      .number(file)
      .number<std::uint16_t>(0)
      .number(static_cast<std::uint32_t>(raw_bytes))
      .number(static_cast<std::uint8_t>(codec))
      .number<std::uint64_t>(pages.to_ullong())
      .number<std::uint8_t>(0);
}

std::string name(std::string_view text, std::uint32_t id, std::uint64_t size) {
  return Script()
      .number(kName)
      .number<std::uint8_t>(0)
      .number(static_cast<std::uint16_t>(text.size()))
      .text(text)
      .number(id)
      .number(size);
}

std::string compressed(store::Codec codec, std::size_t raw_bytes) {
  const std::vector<std::byte> raw(raw_bytes, std::byte{7});
  std::vector<std::byte> out(raw_bytes);
  out.resize(store::compress(codec, raw, out));
  return Script().bytes(out);
}

}  // namespace

std::vector<std::string> seeds() {
  const PresentPages first(1);
  const PresentPages third(4);
  const std::size_t two_pages = 2 * kPageBytes;
  return {Script()
              .text(block(3, "a short image", 13, store::Codec::kNone, first))
              .text(block(4, compressed(store::Codec::kLz4, two_pages), two_pages,
                          store::Codec::kLz4, 3))
              .text(block(5, compressed(store::Codec::kZstd, kPageBytes), 3 * kPageBytes,
                          store::Codec::kZstd, third))
              .text(name("core-1.img", 3, 13))
              .text(name("pages-1.img", 4, two_pages))
              .text(name("mm-1.img", 5, 3 * kPageBytes)),
          Script()
              .text(name("../core-1.img", 3, 13))
              .text(name("pre-1/core-1.img", 4, std::uint64_t{1} << 47)),
          Script()
              .number(kRawBlock)
              .number<std::uint8_t>(0)
              .number(static_cast<std::uint16_t>(kBlockHeaderBytes))
              .bytes(encode(BlockHeader{.file = 1,
                                        .offset = 0,
                                        .raw_bytes = 4096,
                                        .stored_bytes = 4096,
                                        .codec = store::Codec::kNone,
                                        .present = first}))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}

#include "tests/store/support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>

namespace gcr::store::test {

Folder::Folder(const std::string& parent) {
  std::string path = parent + "/gcr-store-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make " + path);
  path_ = path;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

const Bytes& noise(std::uint64_t seed, std::size_t size_bytes) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, std::size_t>, Bytes> made;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = made.try_emplace({seed, size_bytes}, size_bytes);
  Bytes& bytes = found->second;
  if (!is_new) return bytes;
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t number = random();
    std::memcpy(&bytes[at], &number, std::min(sizeof number, bytes.size() - at));
  }
  return bytes;
}

Owner this_user() { return {::geteuid(), ::getegid()}; }

Bytes read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

std::string digest_of(const Bytes& chunk) {
  const ContentName name = name_of(Key{}, chunk);
  return {reinterpret_cast<const char*>(name.data()), kDigestBytes};
}

Result<proto::Manifest> describe(Writer& writer, const Chunks& chunks) {
  proto::Manifest manifest;
  proto::Buffer& buffer = *manifest.add_buffers();
  proto::StoredBuffer& vram = *manifest.add_vram();
  buffer.set_id(7);
  buffer.set_size_bytes(chunks.size() * kChunkBytes);
  vram.set_buffer_id(7);
  proto::StoredImage& image = *manifest.add_images();
  image.set_name("pages-1.img");
  for (const Bytes& chunk : chunks) {
    GCR_ASSIGN(const ContentRef content, writer.add(chunk));
    vram.mutable_digests()->append(digest_of(chunk));
    vram.add_contents(content + 1);
    proto::Extent& extent = *image.add_extents();
    extent.set_offset(image.size_bytes());
    extent.set_bytes(static_cast<std::uint32_t>(chunk.size()));
    extent.set_content(content);
    image.set_size_bytes(image.size_bytes() + chunk.size());
  }
  return manifest;
}

Directory Store::directory() const { return Directory::create(path_, owner_).value(); }

Writer::Options Store::options(const std::string& name) const {
  return {.checkpoint = Uuid::random(), .name = name, .packs = 2, .tls = tls_};
}

std::unique_ptr<Writer> Store::writer(const std::string& name) const {
  auto writer = Writer::create(directory(), options(name));
  if (!writer) throw std::runtime_error(writer.error().message());
  return *std::move(writer);
}

proto::Manifest Store::take(const std::string& name, const Chunks& chunks,
                            const std::string& command) {
  const auto writing = writer(name);
  proto::Manifest manifest = describe(*writing, chunks).value();
  manifest.set_taken_unix_ms(now_ms_ += 1'000);
  manifest.mutable_job()->add_members()->set_command(command);
  const Status sealed = writing->seal(manifest);
  EXPECT_TRUE(sealed) << sealed.error().message();
  const Status published = writing->publish();
  EXPECT_TRUE(published) << published.error().message();
  return read(name);
}

proto::Manifest Store::read(const std::string& name) const {
  auto manifest = read_manifest(directory(), file_of(name), tls_);
  if (!manifest) throw std::runtime_error(manifest.error().message());
  return *std::move(manifest);
}

void Store::expect_has(const std::string& name, const Chunks& chunks) const {
  const proto::Manifest manifest = read(name);
  const auto verified = verify(directory(), manifest);
  EXPECT_TRUE(verified) << verified.error().message();
  const auto packs = Packs::open(directory()).value();
  const proto::StoredBuffer& vram = manifest.vram(0);
  ASSERT_EQ(static_cast<std::size_t>(vram.contents_size()), chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    ASSERT_NE(vram.contents(static_cast<int>(i)), 0u);
    Bytes found(kChunkBytes);
    const Status read =
        packs->read(key_of(manifest.content_key()),
                    content_name(manifest, vram.contents(static_cast<int>(i)) - 1), found);
    ASSERT_TRUE(read) << read.error().message();
    ASSERT_EQ(found.size(), chunks[i].size());
    EXPECT_EQ(std::memcmp(found.data(), chunks[i].data(), found.size()), 0) << "chunk " << i;
  }
}

void Store::expect_nothing_left_over() const {
  const Directory opened = directory();
  const Needs needs = Needs::of(opened, tls_).value();
  const auto files = opened.list("").value();
  for (const std::string& file : files) {
    EXPECT_TRUE(file == "packs" || file == "writing" || file.ends_with(".checkpoint")) << file;
  }
  const auto found = Packs::open(opened).value();
  EXPECT_TRUE(found->others().empty());
  for (const Packs::Pack& pack : found->packs()) {
    EXPECT_TRUE(std::ranges::any_of(pack.index, [&](const IndexEntry& entry) {
      return needs.find(entry.name) != nullptr;
    })) << pack.file_name;
  }
}

std::vector<std::filesystem::path> Store::packs() const {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path_ / "packs")) {
    found.push_back(entry.path());
  }
  return found;
}

std::uint64_t Store::pack_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& pack : packs()) bytes += std::filesystem::file_size(pack);
  return bytes;
}

}  // namespace gcr::store::test

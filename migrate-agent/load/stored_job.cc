#include "migrate-agent/load/stored_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <set>
#include <vector>

#include "migrate-agent/memory_files/incoming.h"
#include "src/base/address_ranges.h"
#include "src/base/side_by_side.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {
namespace {

constexpr std::size_t kPartBytes = kMiB;

std::uint64_t end_of(const proto::Extent& extent) { return extent.offset() + extent.bytes(); }

/// What a memory has, as ranges of addresses.
std::vector<AddressRange> ranges_of(const proto::StoredImage& memory) {
  AddressRanges ranges;
  for (const proto::Extent& extent : memory.extents()) {
    append(ranges, {extent.offset(), end_of(extent)});
  }
  return ranges;
}

/// One chunk of a buffer.
struct Chunk {
  int buffer;
  std::size_t number;
  std::uint32_t bytes;
};

std::vector<Chunk> chunks_of(const proto::Manifest& manifest) {
  std::vector<Chunk> chunks;
  for (int i = 0; i < manifest.vram_size(); ++i) {
    const std::uint64_t size = manifest.buffers(i).size_bytes();
    for (std::uint64_t at = 0; at < size; at += kChunkBytes) {
      chunks.push_back(
          {i, at / kChunkBytes, static_cast<std::uint32_t>(std::min(kChunkBytes, size - at))});
    }
  }
  return chunks;
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

/// A whole content.
Status StoredJob::read(std::uint32_t content, std::span<std::byte> out) const {
  store::ContentName name;
  std::memcpy(name.data(), manifest_.content_names().data() + content * name.size(), name.size());
  return packs_->read(key_, name, out);
}

Status StoredJob::send_vram(transport::Channel& channel, const Regions& regions,
                            const digest::DigestKey& key, proto::RestoreRequest& request) const {
  std::vector<std::vector<digest::Digest>> digests;
  for (const proto::StoredBuffer& buffer : manifest_.vram()) {
    digests.emplace_back(buffer.contents_size());
  }
  const std::vector<Chunk> chunks = chunks_of(manifest_);
  GCR_TRY(share_out(chunks.size(), channel.useful_writers(), [&](std::size_t i) -> Status {
    thread_local std::vector<std::byte> memory(kChunkBytes);
    const Chunk& chunk = chunks[i];
    const proto::StoredBuffer& buffer = manifest_.vram(chunk.buffer);
    const std::uint32_t content = buffer.contents(static_cast<int>(chunk.number));
    digest::Digest& digest = digests[chunk.buffer][chunk.number];
    if (content == 0) {
      digest = digest::digest_zeros(key, chunk.bytes);
      return {};
    }
    const auto bytes = std::span(memory).first(chunk.bytes);
    GCR_TRY(read(content - 1, bytes));
    digest = digest::digest_chunk(key, bytes);
    return channel.write(regions.at(buffer.buffer_id()), chunk.number * kChunkBytes, bytes);
  }));
  GCR_TRY(channel.flush());
  for (int i = 0; i < manifest_.vram_size(); ++i) {
    proto::BufferDigests& out = *request.add_digests();
    out.set_buffer_id(manifest_.vram(i).buffer_id());
    out.set_digests(digests[i].data(), digests[i].size() * sizeof(digest::Digest));
  }
  return {};
}

/// Fills `out` with what is at `offset`.
Status StoredJob::read_at(const proto::StoredImage& image, std::uint64_t offset,
                          std::span<std::byte> out) const {
  thread_local std::vector<std::byte> content(store::kMaxContentBytes);
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

Status StoredJob::write_all(const proto::StoredImage& image, int fd) const {
  std::vector<std::byte> part(kPartBytes);
  for (std::uint64_t at = 0; at < image.size_bytes(); at += kPartBytes) {
    auto bytes =
        std::span(part).first(std::min<std::uint64_t>(kPartBytes, image.size_bytes() - at));
    GCR_TRY(read_at(image, at, bytes));
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Error::from_errno(errno, fmt::format("cannot hand on {}", image.name()));
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }
  return {};
}

/// Through a pipe, as it would come from CRIU.
Status StoredJob::send(const proto::StoredImage& image, images::Sink& sink) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "cannot make a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  auto written = std::async(std::launch::async, [&, out = std::move(write_end)]() mutable {
    const Status status = write_all(image, out.get());
    out.reset();
    return status;
  });
  const Status taken = sink.take(image.name(), std::move(read_end));
  GCR_TRY(written.get());
  return taken;
}

Status StoredJob::send_memory(const proto::StoredImage& memory, images::Sink& sink) const {
  const std::vector<AddressRange> ranges = ranges_of(memory);
  return sink.take_memory(
      memory.name(), ranges,
      [&](std::uint64_t address, std::span<std::byte> bytes) {
        return read_at(memory, address, bytes);
      },
      true);
}

Status StoredJob::send_images(images::Sink& sink) const {
  std::set<std::string> files;
  for (int place = 0; place < manifest_.files().files_size(); ++place) {
    files.insert(memory_files::image_name(static_cast<std::size_t>(place)));
  }
  for (const proto::StoredImage& memory : manifest_.memories()) GCR_TRY(send_memory(memory, sink));
  for (const proto::StoredImage& image : manifest_.images()) {
    if (!files.contains(image.name())) GCR_TRY(send(image, sink));
  }
  return {};
}

Status StoredJob::send_image(const std::string& name, images::Sink& sink) const {
  const auto image = std::ranges::find(manifest_.images(), name, &proto::StoredImage::name);
  if (image == manifest_.images().end()) {
    return Error(Code::kDataLoss, fmt::format("the checkpoint lacks {}", name));
  }
  return send(*image, sink);
}

}  // namespace gcr::agent

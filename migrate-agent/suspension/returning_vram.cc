#include "migrate-agent/suspension/returning_vram.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "migrate-agent/mover/vram_digester.h"
#include "migrate-agent/suspension/bus_copy.h"

namespace gcr::agent {
namespace {

Error not_a_copy() { return {Code::kDataLoss, "the keeper does not hold a copy of VRAM"}; }

Result<std::string> read_all(int file) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0) return Error::from_errno(errno, "cannot read a description");
  std::string content(static_cast<std::size_t>(facts.st_size), '\0');
  const ssize_t got = ::pread(file, content.data(), content.size(), 0);
  if (got < 0) return Error::from_errno(errno, "cannot read the description of a copy of VRAM");
  content.resize(static_cast<std::size_t>(got));
  return content;
}

Uuid place_of(const Uuid& gpu, const std::vector<device::GpuPair>& gpus) {
  const auto found = std::ranges::find(gpus, gpu, &device::GpuPair::from);
  return found == gpus.end() ? gpu : found->to;
}

}  // namespace

Result<ReturningVram> ReturningVram::take_from(const journal::ProcessId& keeper) {
  GCR_ASSIGN(job::MemberDescriptors taken, keeper::take_from(keeper));
  std::vector<UniqueFd> files;
  for (auto& [number, file] : taken[job::kRoot]) files.push_back(std::move(file));
  if (files.empty()) return not_a_copy();
  ReturningVram vram;
  GCR_ASSIGN(const std::string content, read_all(files.front().get()));
  if (!vram.description_.ParseFromString(content)) return not_a_copy();
  GCR_TRY(vram.check());
  files.erase(files.begin());
  GCR_TRY(vram.map(files));
  return vram;
}

/// Every buffer lies in a part, and has a digest for each chunk.
Status ReturningVram::check() const {
  for (const KeptBuffer& kept : description_.buffers()) {
    const std::uint64_t size = kept.buffer().size_bytes();
    if (static_cast<int>(kept.part()) >= description_.part_bytes_size()) return not_a_copy();
    const std::uint64_t part = description_.part_bytes(static_cast<int>(kept.part()));
    if (kept.offset() > part || size > part - kept.offset()) return not_a_copy();
    if (kept.digests().size() != mover::chunk_count(size) * sizeof(digest::Digest)) {
      return not_a_copy();
    }
  }
  return description_.digest_key().size() == 32 ? Status() : not_a_copy();
}

Status ReturningVram::map(const std::vector<UniqueFd>& files) {
  if (files.size() != static_cast<std::size_t>(description_.part_bytes_size())) return not_a_copy();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::uint64_t bytes = round_up(description_.part_bytes(static_cast<int>(i)), kChunkBytes);
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files[i].get(), 0);
    if (at == MAP_FAILED) {
      return Error::from_errno(errno, fmt::format("cannot map {} of a copy", format_bytes(bytes)));
    }
    parts_.emplace_back(at, bytes);
  }
  return {};
}

std::map<Uuid, std::uint64_t> ReturningVram::needs() const {
  std::map<Uuid, std::uint64_t> bytes;
  for (const KeptBuffer& kept : description_.buffers()) {
    const std::uint64_t size = kept.buffer().has_host_node() ? 0 : kept.buffer().size_bytes();
    bytes[to_uuid(kept.buffer().gpu_uuid())] += size;
  }
  return bytes;
}

std::uint64_t ReturningVram::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const KeptBuffer& kept : description_.buffers()) bytes += kept.buffer().size_bytes();
  return bytes;
}

Status ReturningVram::create(const std::shared_ptr<const device::Driver>& driver,
                             const std::vector<device::GpuPair>& gpus) {
  device::Gpus opened(driver);
  for (const KeptBuffer& kept : description_.buffers()) {
    const proto::Buffer& buffer = kept.buffer();
    GCR_ASSIGN(const auto gpu, opened.on(place_of(to_uuid(buffer.gpu_uuid()), gpus)));
    const auto node = buffer.has_host_node() ? std::optional(buffer.host_node()) : std::nullopt;
    auto vram = gpu->create(buffer.size_bytes(), node);
    if (!vram) return vram.error().while_doing(fmt::format("cannot make buffer {}", buffer.id()));
    buffers_.emplace(job::AllocationId{buffer.id()}, Buffer{std::move(*vram), &kept});
  }
  return {};
}

Status ReturningVram::fill() {
  std::vector<CopiedBuffer> copied;
  for (const auto& [id, buffer] : buffers_) {
    const auto part = parts_[buffer.kept->part()].bytes();
    copied.push_back(
        {buffer.vram.get(), part.subspan(buffer.kept->offset(), buffer.vram->size_bytes())});
  }
  return copy_in(copied);
}

Status ReturningVram::verify() {
  std::array<std::byte, 32> secret{};
  std::memcpy(secret.data(), description_.digest_key().data(), secret.size());
  mover::VramDigester digester(digest::DigestKey::expand(secret));
  const std::vector<mover::ChunkRef> chunks = mover::chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester.digest(chunks));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::string& expected = buffers_.at(chunks[i].buffer).kept->digests();
    const char* const one = expected.data() + chunks[i].number() * sizeof(digest::Digest);
    if (std::memcmp(one, &digests[i], sizeof(digest::Digest)) == 0) continue;
    return Error(Code::kDataLoss,
                 fmt::format("chunk {} of buffer {} is not what was in VRAM: the copy in host "
                             "memory was changed",
                             chunks[i].number(), chunks[i].buffer.value));
  }
  return {};
}

Status ReturningVram::hand_over(keeper::Keeper& keeper) const {
  std::vector<UniqueFd> descriptors;
  std::vector<keeper::BufferDescriptor> kept;
  for (const auto& [id, buffer] : buffers_) {
    GCR_ASSIGN(UniqueFd descriptor, buffer.vram->duplicate_descriptor());
    for (const proto::Mapping& mapping : buffer.kept->buffer().mapped_by()) {
      kept.push_back({{{mapping.member()}, mapping.local_id()}, descriptor.get()});
    }
    descriptors.push_back(std::move(descriptor));
  }
  return keeper.arm(kept);
}

}  // namespace gcr::agent

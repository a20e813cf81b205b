// How a copy is made: room for it is allocated, populated and page-locked while the job runs, since
// that takes as long as the copy itself. Once the job is stopped, several threads copy VRAM into
// it, each a page-locked piece, at the rate of the bus. Digests of VRAM, taken before the copy, are
// part of the description. Every reader of the copy compares with them, so a memory error in
// between is found before the job runs. A resume page-locks nothing (bus_copy.h).
#include "migrate-agent/gpu/host_copy/host_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "migrate-agent/gpu/host_copy/bus_copy.h"
#include "migrate-agent/gpu/mover/vram_digester.h"
#include "src/base/side_by_side.h"

namespace gcr::gpu {
namespace {

/// The driver page-locks one range at a time; more threads than these gain nothing.
constexpr std::size_t kLockThreads = 4;
/// Pieces that are copied at the same time.
constexpr std::size_t kCopyThreads = 4;

Error not_a_copy() { return {Code::kDataLoss, "the keeper does not hold a copy of VRAM"}; }

/// A file without a name whose content can never change.
Result<UniqueFd> sealed_file(const std::string& content) {
  UniqueFd file(::memfd_create("gcr-copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return Error::from_errno(errno, "cannot create the description of a copy of VRAM");
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t written =
        ::pwrite(file.get(), content.data() + at, content.size() - at, static_cast<off_t>(at));
    if (written < 0) return Error::from_errno(errno, "cannot describe a copy of VRAM");
    at += static_cast<std::size_t>(written);
  }
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) == 0) return file;
  return Error::from_errno(errno, "cannot seal the description of a copy of VRAM");
}

Result<std::string> read_all(int file) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0) {
    return Error::from_errno(errno, "cannot stat the description of a copy of VRAM");
  }
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

Status hand_over(KeptCopy description, std::span<const hostmem::LandingRegion* const> parts,
                 keeper::Keeper& keeper) {
  for (const hostmem::LandingRegion* part : parts) {
    description.add_part_bytes(part->bytes().size());
  }
  GCR_ASSIGN(const UniqueFd file, sealed_file(description.SerializeAsString()));
  std::vector<keeper::BufferDescriptor> kept{{{kRoot, 0}, file.get()}};
  for (const hostmem::LandingRegion* part : parts) {
    kept.push_back({{kRoot, kept.size()}, part->file()});
  }
  return keeper.arm(kept);
}

std::uint64_t HostCopy::missing_bytes(const Job& job) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, allocation] : job.allocations()) {
    if (!places_.contains(id)) bytes += allocation.size_bytes;
  }
  return bytes;
}

Status HostCopy::make_room(const Job& job) {
  const std::uint64_t bytes = missing_bytes(job);
  if (bytes == 0) return {};
  GCR_ASSIGN(auto region, hostmem::LandingRegion::create(bytes, policy_, {},
                                                         hostmem::LandingRegion::Kind::kFile));
  GCR_ASSIGN(const auto gpu, gpus_.on(job.allocations().begin()->second.gpu));
  const auto pieces = pieces_of(region.bytes());
  std::vector<std::unique_ptr<device::HostMemory>> locked(pieces.size());
  GCR_TRY(share_out(pieces.size(), kLockThreads, [&](std::size_t i) -> Status {
    GCR_ASSIGN(locked[i], gpu->page_lock(pieces[i]));
    return {};
  }));
  std::uint64_t offset = 0;
  for (const auto& [id, allocation] : job.allocations()) {
    const Place place{parts_.size(), offset, allocation.size_bytes};
    if (places_.emplace(id, place).second) offset += allocation.size_bytes;
  }
  parts_.push_back({std::move(region), std::move(locked)});
  return {};
}

Status HostCopy::fill(const Job& job, const mover::OutgoingVram& vram) const {
  std::vector<CopiedBuffer> buffers;
  for (const auto& [id, allocation] : job.allocations()) {
    buffers.push_back({&vram.vram(id), content(id)});
  }
  std::vector<std::span<std::byte>> pieces;
  for (const Part& part : parts_) {
    for (const auto piece : pieces_of(part.region.bytes())) pieces.push_back(piece);
  }
  return share_out(pieces.size(), kCopyThreads,
                   [&](std::size_t i) { return copy_out(buffers, pieces[i]); });
}

Status HostCopy::hand_over(const Job& job, const mover::VramDigests& digests, KeptCopy description,
                           keeper::Keeper& keeper) const {
  for (const auto& [id, allocation] : job.allocations()) {
    KeptBuffer& buffer = *description.add_buffers();
    *buffer.mutable_buffer() = to_message(allocation);
    buffer.set_part(static_cast<std::uint32_t>(places_.at(id).part));
    buffer.set_offset(places_.at(id).offset);
    const auto found = digests.find(id);
    if (found == digests.end()) continue;
    buffer.set_digests(found->second.data(), found->second.size() * sizeof(digest::Digest));
  }
  std::vector<const hostmem::LandingRegion*> regions;
  for (const Part& part : parts_) regions.push_back(&part.region);
  return gpu::hand_over(std::move(description), regions, keeper);
}

bool HostCopy::is_huge() const {
  return std::ranges::all_of(parts_, [](const Part& part) { return part.region.huge(); });
}

std::string HostCopy::note() const {
  for (const Part& part : parts_) {
    if (!part.region.note().empty()) return part.region.note();
  }
  return "";
}

Result<HostCopy> HostCopy::open(const journal::ProcessId& keeper) {
  GCR_ASSIGN(MemberDescriptors taken, keeper::take_from(keeper));
  LocalDescriptors& files = taken[kRoot];
  if (files.empty()) return not_a_copy();
  HostCopy copy(nullptr, hostmem::HugepagePolicy::kAuto);
  GCR_ASSIGN(const std::string content, read_all(files.front().second.get()));
  if (!copy.description_.ParseFromString(content)) return not_a_copy();
  GCR_TRY(copy.read_description());
  const auto& part_bytes = copy.description_.part_bytes();
  if (files.size() != static_cast<std::size_t>(part_bytes.size()) + 1) return not_a_copy();
  for (int i = 0; i < part_bytes.size(); ++i) {
    UniqueFd& file = files[static_cast<std::size_t>(i) + 1].second;
    GCR_ASSIGN(auto region, hostmem::LandingRegion::open(std::move(file), part_bytes[i]));
    copy.parts_.push_back({std::move(region)});
  }
  return copy;
}

/// Every buffer lies in a part, and has a digest for each chunk.
Status HostCopy::read_description() {
  for (const KeptBuffer& kept : description_.buffers()) {
    const AllocationId id{kept.buffer().id()};
    const std::uint64_t size = kept.buffer().size_bytes();
    if (static_cast<int>(kept.part()) >= description_.part_bytes_size()) return not_a_copy();
    const std::uint64_t part = description_.part_bytes(static_cast<int>(kept.part()));
    if (kept.offset() > part || size > part - kept.offset()) return not_a_copy();
    std::vector<digest::Digest>& digests = digests_[id];
    digests.resize(mover::chunk_count(size));
    if (kept.digests().size() != digests.size() * sizeof(digest::Digest)) return not_a_copy();
    std::memcpy(digests.data(), kept.digests().data(), kept.digests().size());
    if (!places_.emplace(id, Place{kept.part(), kept.offset(), size}).second) return not_a_copy();
  }
  return description_.digest_key().size() == 32 ? Status() : not_a_copy();
}

std::span<std::byte> HostCopy::content(AllocationId id) const {
  const auto& [part, offset, size_bytes] = places_.at(id);
  return parts_[part].region.bytes().subspan(offset, size_bytes);
}

digest::DigestKey HostCopy::key() const {
  return digest::DigestKey::expand(std::as_bytes(std::span(description_.digest_key())).first<32>());
}

Status HostCopy::check(const mover::ChunkRef& chunk, const digest::Digest& now) const {
  if (digests_.at(chunk.buffer)[chunk.number()] == now) return {};
  return Error(Code::kDataLoss,
               fmt::format("chunk {} of buffer {} is not what was in VRAM: the copy in host memory "
                           "was changed",
                           chunk.number(), chunk.buffer.value));
}

std::uint64_t HostCopy::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, place] : places_) bytes += place.size_bytes;
  return bytes;
}

std::vector<mover::MappableGpu> HostCopy::origins() const {
  std::vector<mover::MappableGpu> gpus;
  for (const proto::Gpu& gpu : description_.gpus()) {
    if (gpu.has_amd()) continue;
    gpus.push_back(
        {.uuid = to_uuid(gpu.uuid()), .name = gpu.name(), .total_bytes = gpu.total_bytes()});
  }
  return gpus;
}

std::map<Uuid, std::uint64_t> HostCopy::bytes_by_gpu() const {
  std::map<Uuid, std::uint64_t> bytes;
  for (const KeptBuffer& kept : description_.buffers()) {
    const std::uint64_t size = kept.buffer().has_host_node() ? 0 : kept.buffer().size_bytes();
    bytes[to_uuid(kept.buffer().gpu_uuid())] += size;
  }
  return bytes;
}

Status HostCopy::read(const digest::DigestKey& key, unsigned threads,
                      const mover::ChunkSink& sink) const {
  const digest::DigestKey kept_key = this->key();
  const std::vector<mover::ChunkRef> chunks = mover::chunks_by_size(places_);
  return share_out(chunks.size(), threads, [&](std::size_t i) -> Status {
    const mover::ChunkRef& chunk = chunks[i];
    const auto bytes = content(chunk.buffer).subspan(chunk.offset, chunk.length_bytes);
    GCR_TRY(check(chunk, digest::digest_chunk(kept_key, bytes)));
    return sink(chunk, digest::digest_chunk(key, bytes), bytes);
  });
}

Result<HostCopy::Vram> HostCopy::create_vram(const std::shared_ptr<const device::Driver>& driver,
                                             const std::vector<device::GpuPair>& gpus) const {
  device::Gpus opened(driver);
  Vram made;
  for (const KeptBuffer& kept : description_.buffers()) {
    const Allocation buffer = from_message(kept.buffer());
    GCR_ASSIGN(const auto gpu, opened.on(place_of(buffer.gpu, gpus)));
    auto vram = gpu->create(buffer.size_bytes, buffer.host_node);
    if (!vram) {
      return vram.error().while_doing(fmt::format("cannot make buffer {}", buffer.id.value));
    }
    made.emplace(buffer.id, Buffer{std::move(*vram)});
  }
  return made;
}

Status HostCopy::copy_to(const Vram& vram) const {
  std::vector<CopiedBuffer> buffers;
  for (const auto& [id, buffer] : vram) buffers.push_back({buffer.vram.get(), content(id)});
  return copy_in(buffers);
}

Status HostCopy::verify(const Vram& vram) const {
  const digest::DigestKey key = this->key();
  mover::VramDigester digester(key);
  const std::vector<mover::VramChunk> chunks = mover::chunks_of(vram);
  GCR_ASSIGN(const auto digests, digester.digest(chunks));
  for (std::size_t i = 0; i < chunks.size(); ++i) GCR_TRY(check(chunks[i], digests[i]));
  return {};
}

Status HostCopy::hand_over_vram(const Vram& vram, keeper::Keeper& keeper) const {
  std::vector<UniqueFd> descriptors;
  std::vector<keeper::BufferDescriptor> kept;
  for (const KeptBuffer& buffer : description_.buffers()) {
    const Allocation allocation = from_message(buffer.buffer());
    GCR_ASSIGN(UniqueFd descriptor, vram.at(allocation.id).vram->duplicate_descriptor());
    for (const Mapping& mapping : allocation.mapped_by) {
      kept.push_back({mapping, descriptor.get()});
    }
    descriptors.push_back(std::move(descriptor));
  }
  return keeper.arm(kept);
}

}  // namespace gcr::gpu

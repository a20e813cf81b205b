#include "migrate-agent/migration/suspend/host_copy.h"

#include "migrate-agent/gpu/host_copy/kept_vram.h"
#include "migrate-agent/migration/suspend/bus_copy.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "src/base/side_by_side.h"

namespace gcr::migration {
namespace {

/// The driver page-locks one range at a time; more threads than these gain nothing.
constexpr std::size_t kLockThreads = 4;
/// Pieces that are copied at the same time.
constexpr std::size_t kCopyThreads = 4;

}  // namespace

std::uint64_t HostCopy::missing_bytes(const gpu::Job& job) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, allocation] : job.allocations()) {
    if (!places_.contains(id)) bytes += allocation.size_bytes;
  }
  return bytes;
}

Status HostCopy::make_room(const gpu::Job& job) {
  const std::uint64_t bytes = missing_bytes(job);
  if (bytes == 0) return {};
  GCR_ASSIGN(auto region, hostmem::LandingRegion::create_file(bytes, policy_));
  GCR_ASSIGN(const auto gpu, gpus_.on(job.allocations().begin()->second.gpu));
  const auto pieces = pieces_of(region.bytes());
  std::vector<std::unique_ptr<device::HostMemory>> locked(pieces.size());
  GCR_TRY(share_out(pieces.size(), kLockThreads, [&](std::size_t i) -> Status {
    GCR_ASSIGN(locked[i], gpu->page_lock(pieces[i]));
    return {};
  }));
  std::uint64_t offset = 0;
  for (const auto& [id, allocation] : job.allocations()) {
    if (!places_.emplace(id, Place{parts_.size(), offset}).second) continue;
    offset += allocation.size_bytes;
  }
  parts_.push_back({std::move(region), std::move(locked)});
  return {};
}

Status HostCopy::fill(const gpu::Job& job, const mover::OutgoingVram& vram) const {
  std::vector<CopiedBuffer> buffers;
  for (const auto& [id, allocation] : job.allocations()) {
    const Place& place = places_.at(id);
    buffers.push_back({&vram.vram(id), parts_[place.part].region.bytes().subspan(
                                           place.offset, allocation.size_bytes)});
  }
  std::vector<std::span<std::byte>> pieces;
  for (const Part& part : parts_) {
    for (const auto piece : pieces_of(part.region.bytes())) pieces.push_back(piece);
  }
  return share_out(pieces.size(), kCopyThreads,
                   [&](std::size_t i) { return copy_out(buffers, pieces[i]); });
}

Status HostCopy::hand_over(const gpu::Job& job, const Digests& digests, const Secret& secret,
                           gpu::KeptCopy description, keeper::Keeper& keeper) const {
  description.set_digest_key(secret.data(), secret.size());
  for (const auto& [id, allocation] : job.allocations()) {
    gpu::KeptBuffer& buffer = *description.add_buffers();
    *buffer.mutable_buffer() = preflight::describe(allocation);
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

}  // namespace gcr::migration

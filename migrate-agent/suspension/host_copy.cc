#include "migrate-agent/suspension/host_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "migrate-agent/source/examination.h"
#include "migrate-agent/suspension/bus_copy.h"
#include "src/base/side_by_side.h"

namespace gcr::agent {
namespace {

/// The driver page-locks one range at a time; more threads than these gain nothing.
constexpr std::size_t kLockThreads = 4;
/// Pieces that are copied at the same time.
constexpr std::size_t kCopyThreads = 4;

/// A file without a name that nobody can change.
Result<UniqueFd> sealed_file(const std::string& content) {
  UniqueFd file(::memfd_create("gcr-copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return Error::from_errno(errno, "cannot make the description of a copy of VRAM");
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

}  // namespace

std::uint64_t HostCopy::missing_bytes(const job::Job& job) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, allocation] : job.allocations()) {
    if (!places_.contains(id)) bytes += allocation.size_bytes;
  }
  return bytes;
}

Status HostCopy::make_room(const job::Job& job) {
  const std::uint64_t bytes = missing_bytes(job);
  if (bytes == 0) return {};
  GCR_ASSIGN(auto region, landing::LandingRegion::create_file(bytes, policy_));
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

Status HostCopy::fill(const job::Job& job, const mover::OutgoingVram& vram) const {
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
                   [&](std::size_t i) { return copy_piece(buffers, pieces[i], Direction::kOut); });
}

Status HostCopy::hand_over(const job::Job& job, const Digests& digests, const Secret& secret,
                           KeptCopy description, keeper::Keeper& keeper) const {
  description.set_digest_key(secret.data(), secret.size());
  for (const Part& part : parts_) description.add_part_bytes(part.region.bytes().size());
  for (const auto& [id, allocation] : job.allocations()) {
    KeptBuffer& buffer = *description.add_buffers();
    *buffer.mutable_buffer() = agent::describe(allocation);
    buffer.set_part(static_cast<std::uint32_t>(places_.at(id).part));
    buffer.set_offset(places_.at(id).offset);
    const auto found = digests.find(id);
    if (found == digests.end()) continue;
    buffer.set_digests(found->second.data(), found->second.size() * sizeof(digest::Digest));
  }
  GCR_ASSIGN(const UniqueFd file, sealed_file(description.SerializeAsString()));
  std::vector<keeper::BufferDescriptor> kept{{{job::kRoot, 0}, file.get()}};
  for (const Part& part : parts_) kept.push_back({{job::kRoot, kept.size()}, part.region.file()});
  return keeper.arm(kept);
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

}  // namespace gcr::agent

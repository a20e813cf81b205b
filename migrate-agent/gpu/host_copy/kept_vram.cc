#include "migrate-agent/gpu/host_copy/kept_vram.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "migrate-agent/gpu/mover/chunk.h"

namespace gcr::gpu {
namespace {

Error not_a_copy() { return {Code::kDataLoss, "the keeper does not hold a copy of VRAM"}; }

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

Result<std::string> read_all(int file) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0) return Error::from_errno(errno, "cannot read a description");
  std::string content(static_cast<std::size_t>(facts.st_size), '\0');
  const ssize_t got = ::pread(file, content.data(), content.size(), 0);
  if (got < 0) return Error::from_errno(errno, "cannot read the description of a copy of VRAM");
  content.resize(static_cast<std::size_t>(got));
  return content;
}

}  // namespace

Status hand_over(KeptCopy description, std::span<const hostmem::LandingRegion* const> parts,
                 keeper::Keeper& keeper) {
  for (const hostmem::LandingRegion* part : parts) {
    description.add_part_bytes(part->bytes().size());
  }
  GCR_ASSIGN(const UniqueFd file, sealed_file(description.SerializeAsString()));
  std::vector<keeper::BufferDescriptor> kept{{{gpu::kRoot, 0}, file.get()}};
  for (const hostmem::LandingRegion* part : parts) {
    kept.push_back({{gpu::kRoot, kept.size()}, part->file()});
  }
  return keeper.arm(kept);
}

Result<KeptVram> KeptVram::take_from(const journal::ProcessId& keeper) {
  GCR_ASSIGN(gpu::MemberDescriptors taken, keeper::take_from(keeper));
  std::vector<UniqueFd> files;
  for (auto& [number, file] : taken[gpu::kRoot]) files.push_back(std::move(file));
  if (files.empty()) return not_a_copy();
  KeptVram vram;
  GCR_ASSIGN(const std::string content, read_all(files.front().get()));
  if (!vram.description_.ParseFromString(content)) return not_a_copy();
  GCR_TRY(vram.check());
  files.erase(files.begin());
  GCR_TRY(vram.map(files));
  return vram;
}

Status KeptVram::check() const {
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

Status KeptVram::map(const std::vector<UniqueFd>& files) {
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

std::uint64_t KeptVram::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const KeptBuffer& kept : description_.buffers()) bytes += kept.buffer().size_bytes();
  return bytes;
}

std::span<std::byte> KeptVram::content(const KeptBuffer& kept) const {
  return parts_[kept.part()].bytes().subspan(kept.offset(), kept.buffer().size_bytes());
}

std::array<std::byte, 32> KeptVram::digest_key() const {
  std::array<std::byte, 32> secret{};
  std::memcpy(secret.data(), description_.digest_key().data(), secret.size());
  return secret;
}

Status KeptVram::check_digest(const KeptBuffer& kept, std::size_t chunk,
                              const digest::Digest& now) {
  const char* const expected = kept.digests().data() + chunk * sizeof(digest::Digest);
  if (std::memcmp(expected, &now, sizeof(digest::Digest)) == 0) return {};
  return Error(Code::kDataLoss,
               fmt::format("chunk {} of buffer {} is not what was in VRAM: the copy in host memory "
                           "was changed",
                           chunk, kept.buffer().id()));
}

}  // namespace gcr::gpu

#include "migrate-agent/migration/destination/request_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "src/base/units.h"

namespace gcr::migration {

Status check_members(int members) {
  if (members >= 1 && members <= static_cast<int>(gpu::kMaxMembers)) return {};
  return Error(Code::kProtocol,
               fmt::format("the source sent a job of {} processes; 1 to {} are supported", members,
                           gpu::kMaxMembers));
}

Result<std::array<std::byte, 32>> check_digest_key(const std::string& bytes) {
  std::array<std::byte, 32> secret{};
  if (bytes.size() != secret.size()) {
    return Error(Code::kProtocol,
                 fmt::format("the digest key has {} bytes instead of 32", bytes.size()));
  }
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return secret;
}

Result<std::vector<mover::IncomingVram::Wanted>> add_buffers(
    const Buffers& buffers, const std::vector<device::GpuPair>& gpu_map, gpu::Job& job,
    std::uint64_t room_bytes) {
  if (job.allocations().size() + static_cast<std::size_t>(buffers.size()) > kMaxBuffers) {
    return Error(Code::kProtocol,
                 fmt::format("the job has more than the supported {} buffers", kMaxBuffers));
  }
  std::vector<mover::IncomingVram::Wanted> wanted;
  std::uint64_t total = 0;
  for (const proto::Buffer& buffer : buffers) {
    const auto pair = std::ranges::find_if(gpu_map, [&](const device::GpuPair& p) {
      return std::ranges::equal(std::as_bytes(std::span(p.from.bytes)),
                                std::as_bytes(std::span(buffer.gpu_uuid())));
    });
    gpu::Allocation allocation = gpu::from_message(buffer);
    if (pair != gpu_map.end()) allocation.gpu = pair->to;
    wanted.push_back({allocation.id, allocation.gpu, buffer.size_bytes(), allocation.host_node});
    if (pair == gpu_map.end() || buffer.size_bytes() == 0 ||
        buffer.size_bytes() % kChunkBytes != 0 || !job.add(std::move(allocation))) {
      return Error(Code::kProtocol,
                   fmt::format("buffer {} ({} bytes) has an invalid size, GPU, id or mapping",
                               buffer.id(), buffer.size_bytes()));
    }
    if (buffer.size_bytes() > room_bytes - total) {
      return Error(Code::kResourceExhausted,
                   fmt::format("the buffers need more than the {} of memory that this host has",
                               format_bytes(room_bytes)));
    }
    total += buffer.size_bytes();
  }
  return wanted;
}

Status remap_buffers(const Buffers& buffers, gpu::Job& job) {
  for (const proto::Buffer& buffer : buffers) {
    if (job.remap({buffer.id()}, gpu::from_message(buffer).mapped_by)) continue;
    return Error(Code::kProtocol,
                 fmt::format("the new mappings of buffer {} are invalid", buffer.id()));
  }
  return {};
}

Status remove_buffers(const google::protobuf::RepeatedField<std::uint64_t>& ids, gpu::Job& job) {
  for (const std::uint64_t id : ids) {
    if (job.remove({id})) continue;
    return Error(Code::kProtocol, fmt::format("cannot remove buffer {}, which does not exist", id));
  }
  return {};
}

Result<mover::VramDigests> check_digests(
    const google::protobuf::RepeatedPtrField<proto::BufferDigests>& buffers, const gpu::Job& job) {
  mover::VramDigests checked;
  for (const proto::BufferDigests& buffer : buffers) {
    const gpu::AllocationId id{buffer.buffer_id()};
    const auto found = job.allocations().find(id);
    const std::string& bytes = buffer.digests();
    if (found == job.allocations().end() || checked.contains(id) ||
        bytes.size() != mover::chunk_count(found->second.size_bytes) * sizeof(digest::Digest)) {
      return Error(Code::kProtocol, fmt::format("{} bytes do not fit the digests of buffer {}",
                                                bytes.size(), buffer.buffer_id()));
    }
    auto& digests = checked[id];
    digests.resize(bytes.size() / sizeof(digest::Digest));
    std::memcpy(digests.data(), bytes.data(), bytes.size());
  }
  const std::size_t count = job.allocations().size();
  if (checked.size() == count) return checked;
  return Error(Code::kProtocol, fmt::format("the source sent digests of {} buffers instead of {}",
                                            checked.size(), count));
}

Result<std::vector<images::ImageFile>> check_files(
    const google::protobuf::RepeatedPtrField<proto::ImageFile>& files) {
  if (files.size() > static_cast<int>(images::kMaxFiles)) {
    return Error(Code::kProtocol,
                 fmt::format("the source sent {} image files, at most {} are supported",
                             files.size(), images::kMaxFiles));
  }
  std::vector<images::ImageFile> checked;
  for (const proto::ImageFile& file : files) {
    GCR_ASSIGN(const auto digest, images::ImageDigest::from_bytes(file.digest()));
    checked.push_back({file.name(), file.id(), file.size_bytes(), digest});
  }
  return checked;
}

}  // namespace gcr::migration

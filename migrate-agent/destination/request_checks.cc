#include "migrate-agent/destination/request_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>

#include "src/base/units.h"

namespace gcr::agent {

Result<std::array<std::byte, 32>> check_digest_key(const std::string& bytes) {
  std::array<std::byte, 32> secret{};
  if (bytes.size() != secret.size()) {
    return Error(Code::kProtocol, "the digest key is not 32 bytes long");
  }
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return secret;
}

Result<std::vector<mover::IncomingVram::Wanted>> check_buffers(
    const google::protobuf::RepeatedPtrField<proto::Buffer>& buffers,
    const std::vector<device::GpuPair>& gpu_map, const OpenBuffers& open,
    std::uint64_t room_bytes) {
  if (open.size() + static_cast<std::size_t>(buffers.size()) > kMaxBuffers) {
    return Error(Code::kProtocol, fmt::format("more than {} buffers", kMaxBuffers));
  }
  std::vector<mover::IncomingVram::Wanted> wanted;
  std::set<mover::BufferId> ids;
  std::uint64_t total = 0;
  for (const proto::Buffer& buffer : buffers) {
    const auto pair = std::ranges::find_if(gpu_map, [&](const device::GpuPair& p) {
      return std::ranges::equal(std::as_bytes(std::span(p.from.bytes)),
                                std::as_bytes(std::span(buffer.gpu_uuid())));
    });
    if (pair == gpu_map.end() || buffer.size_bytes() == 0 ||
        buffer.size_bytes() % kChunkBytes != 0 || open.contains(buffer.id()) ||
        !ids.insert(buffer.id()).second) {
      return Error(Code::kProtocol, fmt::format("buffer {} ({} bytes) cannot be prepared",
                                                buffer.id(), buffer.size_bytes()));
    }
    if (buffer.size_bytes() > room_bytes - total) {
      return Error(Code::kResourceExhausted,
                   fmt::format("the landing region needs more than the {} that are available",
                               format_bytes(room_bytes)));
    }
    total += buffer.size_bytes();
    wanted.push_back({buffer.id(), pair->to, buffer.size_bytes()});
  }
  return wanted;
}

Status check_removed(const google::protobuf::RepeatedField<std::uint64_t>& ids,
                     const OpenBuffers& open) {
  std::set<mover::BufferId> seen;
  for (const mover::BufferId id : ids) {
    if (open.contains(id) && seen.insert(id).second) continue;
    return Error(Code::kProtocol, fmt::format("there is no buffer {} to remove", id));
  }
  return {};
}

Result<BufferDigests> check_digests(
    const google::protobuf::RepeatedPtrField<proto::BufferDigests>& buffers,
    const OpenBuffers& open) {
  BufferDigests checked;
  for (const proto::BufferDigests& buffer : buffers) {
    const auto found = open.find(buffer.buffer_id());
    const std::string& bytes = buffer.digests();
    if (found == open.end() || checked.contains(buffer.buffer_id()) ||
        bytes.size() != mover::chunk_count(found->second) * sizeof(digest::Digest)) {
      return Error(Code::kProtocol, fmt::format("{} bytes are not the digests of buffer {}",
                                                bytes.size(), buffer.buffer_id()));
    }
    auto& digests = checked[buffer.buffer_id()];
    digests.resize(bytes.size() / sizeof(digest::Digest));
    std::memcpy(digests.data(), bytes.data(), bytes.size());
  }
  if (checked.size() == open.size()) return checked;
  return Error(Code::kProtocol, fmt::format("the source sent digests of {} buffers, not of {}",
                                            checked.size(), open.size()));
}

Result<std::vector<images::NamedFile>> check_files(
    const google::protobuf::RepeatedPtrField<proto::ImageFile>& files) {
  if (files.size() > static_cast<int>(images::kMaxFiles)) {
    return Error(Code::kProtocol,
                 fmt::format("{} image files are more than {}", files.size(), images::kMaxFiles));
  }
  std::vector<images::NamedFile> checked;
  for (const proto::ImageFile& file : files) {
    GCR_ASSIGN(const auto digest, images::ImageDigest::from_bytes(file.digest()));
    checked.push_back({file.name(), file.id(), file.size_bytes(), digest});
  }
  return checked;
}

}  // namespace gcr::agent

// How a destination checks its source's requests: as a whole, against what exists and what there is
// room for, before anything is allocated, opened or copied. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/images/store.h"
#include "migrate-agent/mover/gpu_map.h"
#include "migrate-agent/mover/incoming_vram.h"
#include "proto/control.pb.h"
#include "src/base/limits.h"
#include "src/base/result.h"

namespace gcr::agent {

/// The buffers that the source may write to, and their sizes in bytes.
using OpenBuffers = std::map<mover::BufferId, std::uint64_t>;
using BufferDigests = std::map<mover::BufferId, std::vector<digest::Digest>>;

/// The migration's secret, of 32 bytes. kProtocol.
Result<std::array<std::byte, 32>> check_digest_key(const std::string& bytes);

/// Buffers to create: of whole chunks, on GPUs that `gpu_map` has at the source, at most
/// kMaxBuffers together with those that are `open`, each with a new id. Else kProtocol;
/// kResourceExhausted if they need more than `room_bytes`.
Result<std::vector<mover::IncomingVram::Wanted>> check_buffers(
    const google::protobuf::RepeatedPtrField<proto::Buffer>& buffers,
    const std::vector<device::GpuPair>& gpu_map, const OpenBuffers& open, std::uint64_t room_bytes);

/// Buffers to remove: each is open, and is named once. kProtocol.
Status check_removed(const google::protobuf::RepeatedField<std::uint64_t>& ids,
                     const OpenBuffers& open);

/// One digest for each chunk of each open buffer, and no others. kProtocol.
Result<BufferDigests> check_digests(
    const google::protobuf::RepeatedPtrField<proto::BufferDigests>& buffers,
    const OpenBuffers& open);

/// At most kMaxFiles, with well-formed digests. ImageStore::complete checks names and sizes.
/// kProtocol.
Result<std::vector<images::NamedFile>> check_files(
    const google::protobuf::RepeatedPtrField<proto::ImageFile>& files);

}  // namespace gcr::agent

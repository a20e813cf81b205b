// How a destination checks its source's requests: as a whole, against what exists and what there is
// room for, before anything is allocated, opened or copied. They change nothing but the job, which
// is of no use after an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "migrate-agent/gpu/mover/incoming_vram.h"
#include "migrate-agent/transfer/images/store.h"
#include "proto/control.pb.h"
#include "src/base/limits.h"
#include "src/base/result.h"

namespace gcr::migration {

using Buffers = google::protobuf::RepeatedPtrField<proto::Buffer>;

/// How many members a job may have: one for now. kUnsupported.
Status check_members(int members);

/// The migration's secret, of 32 bytes. kProtocol.
Result<std::array<std::byte, 32>> check_digest_key(const std::string& bytes);

/// Adds buffers to the job: of whole chunks, on GPUs that `gpu_map` has at the source, at most
/// kMaxBuffers together with those of the job, each with a new id and with mappings of its own.
/// Else kProtocol; kResourceExhausted if they need more than `room_bytes`.
Result<std::vector<mover::IncomingVram::Wanted>> add_buffers(
    const Buffers& buffers, const std::vector<device::GpuPair>& gpu_map, gpu::Job& job,
    std::uint64_t room_bytes);

/// Other mappings of buffers of the job. kProtocol.
Status remap_buffers(const Buffers& buffers, gpu::Job& job);

/// Removes buffers from the job: each is there, and is named once. kProtocol.
Status remove_buffers(const google::protobuf::RepeatedField<std::uint64_t>& ids, gpu::Job& job);

/// One digest for each chunk of each buffer of the job, and no others. kProtocol.
Result<mover::VramDigests> check_digests(
    const google::protobuf::RepeatedPtrField<proto::BufferDigests>& buffers, const gpu::Job& job);

/// At most kMaxFiles, with well-formed digests. ImageStore::complete checks names and sizes.
/// kProtocol.
Result<std::vector<images::ImageFile>> check_files(
    const google::protobuf::RepeatedPtrField<proto::ImageFile>& files);

}  // namespace gcr::migration

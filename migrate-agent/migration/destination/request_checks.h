// Checks of a source's requests at the destination, before anything is allocated, opened or copied:
// each request is checked as a whole against the job and this host's resources. They change nothing
// except `job`, which must not be used after an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/mover/incoming_vram.h"
#include "migrate-agent/transfer/images/store.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/units.h"

namespace gcr::migration {

using Buffers = google::protobuf::RepeatedPtrField<proto::Buffer>;

/// Checks the number of a job's members: 1 to gpu::kMaxMembers. kProtocol.
Status check_members(int members);

/// Gives the migration's secret of 32 bytes. kProtocol if the length differs.
Result<std::array<std::byte, 32>> check_digest_key(const std::string& bytes);

/// Adds buffers to the job. Each must consist of whole chunks, be on a GPU that `gpu_map` has at
/// the source, and have a new id and mappings of its own; the job may have at most kMaxBuffers.
/// Otherwise kProtocol; kResourceExhausted if they need more than `room_bytes`.
Result<std::vector<mover::IncomingVram::Wanted>> add_buffers(
    const Buffers& buffers, const std::vector<device::GpuPair>& gpu_map, gpu::Job& job,
    std::uint64_t room_bytes);

/// Changes mappings of buffers. kProtocol if a buffer is unknown or its mappings are taken.
Status remap_buffers(const Buffers& buffers, gpu::Job& job);

/// Removes buffers from the job. kProtocol if one is unknown or named twice.
Status remove_buffers(const google::protobuf::RepeatedField<std::uint64_t>& ids, gpu::Job& job);

/// Checks that there is exactly one digest for each chunk of each buffer of the job. kProtocol.
Result<mover::VramDigests> check_digests(
    const google::protobuf::RepeatedPtrField<proto::BufferDigests>& buffers, const gpu::Job& job);

/// Checks that there are at most kMaxFiles files, with well-formed digests. ImageStore::complete
/// checks names and sizes. kProtocol.
Result<std::vector<images::ImageFile>> check_files(
    const google::protobuf::RepeatedPtrField<proto::ImageFile>& files);

}  // namespace gcr::migration

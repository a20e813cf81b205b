// What the targets of the destination's requests share: a host with two GPUs and some memory, and
// the invariants after buffers were added.
#pragma once

#include <google/protobuf/stubs/logging.h>

#include <string>
#include <vector>

#include "migrate-agent/migration/destination/request_checks.h"
#include "src/base/units.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {

inline constexpr std::uint64_t kRoomBytes = 64 * kMiB;
inline const std::vector<device::GpuPair> kGpuMap = {{Uuid{{1}}, Uuid{{3}}},
                                                     {Uuid{{2}}, Uuid{{4}}}};

/// Without log lines about unparsable input.
inline bool parse(std::span<const std::byte> bytes, google::protobuf::MessageLite& message) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

inline proto::Buffer buffer(std::uint64_t id, std::uint64_t size_bytes) {
  proto::Buffer buffer;
  buffer.set_id(id);
  const Uuid& gpu = kGpuMap.front().from;
  buffer.set_gpu_uuid(gpu.bytes.data(), gpu.bytes.size());
  buffer.set_size_bytes(size_bytes);
  buffer.add_mapped_by()->set_local_id(id);
  return buffer;
}

/// The result of add_buffers on `there`.
inline void check_added(const std::vector<mover::IncomingVram::Wanted>& wanted,
                        const gpu::Job& there) {
  std::uint64_t total = 0;
  for (const mover::IncomingVram::Wanted& buffer : wanted) {
    const bool here = buffer.gpu == kGpuMap[0].to || buffer.gpu == kGpuMap[1].to;
    require(here, "buffers lie on this host's GPUs");
    require(buffer.size_bytes > 0 && buffer.size_bytes % kChunkBytes == 0, "chunks are whole");
    total += buffer.size_bytes;
    const gpu::Allocation& added = there.allocations().at(buffer.id);
    for (const gpu::Mapping& mapping : added.mapped_by) {
      require(there.find(mapping) == buffer.id, "a member's number means one buffer");
    }
    require(!added.mapped_by.empty(), "it has a mapping");
  }
  require(total <= kRoomBytes, "there is room for what is taken");
  require(there.allocations().size() <= kMaxBuffers, "buffers are within their limit");
}

}  // namespace gcr::fuzz

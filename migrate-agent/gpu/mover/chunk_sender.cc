// How chunks are spared: the sender keeps, for each chunk, the digest of what the target has, at
// first that of zeros. A chunk with the same digest is skipped. One that has become zeros is
// cleared at the target. One whose digest the target knows, as a checkpoint knows the chunks of
// earlier ones, is taken from there. Only the others are written to the channel. A digest is
// replaced only after its write has succeeded, so a failed send() never claims more than was sent.
#include "migrate-agent/gpu/mover/chunk_sender.h"

#include <fmt/format.h>

#include <atomic>
#include <set>

#include "migrate-agent/base/fault/fault.h"

namespace gcr::mover {
namespace {

Status write(transport::Channel& channel, transport::RegionId region, std::uint64_t offset,
             std::span<const std::byte> bytes) {
  if (!fault::armed("source.chunk.corrupt")) return channel.write(region, offset, bytes);
  std::vector<std::byte> corrupted(bytes.begin(), bytes.end());
  corrupted.back() ^= std::byte{1};
  return channel.write(region, offset, corrupted);
}

}  // namespace

void ChunkSender::add(AllocationId id, std::uint64_t size_bytes) {
  std::vector<digest::Digest>& digests = digests_[id];
  for (const ChunkRef& chunk : chunks_of(id, size_bytes)) {
    digests.push_back(digest::digest_zeros(key_, chunk.length_bytes));
  }
}

void ChunkSender::remove(AllocationId id) {
  digests_.erase(id);
  regions_.erase(id);
}

Status ChunkSender::assign(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  std::set<AllocationId> assigned;
  for (const proto::BufferRegion& region : regions) {
    const AllocationId id{region.buffer_id()};
    if (!digests_.contains(id) || !assigned.insert(id).second) {
      return Error(Code::kProtocol, "the destination prepared a buffer that was not asked for");
    }
    regions_[id] = region.region();
  }
  for (const auto& [id, digests] : digests_) {
    if (regions_.contains(id)) continue;
    return Error(Code::kProtocol,
                 fmt::format("the destination has no region for buffer {}", id.value));
  }
  return {};
}

ChunkSender::Step ChunkSender::settle(const ChunkRef& chunk, const digest::Digest& digest,
                                      ChunkTarget& target) {
  digest::Digest& last = digests_.at(chunk.buffer)[chunk.number()];
  if (digest == last) return Step::kNone;
  const transport::RegionId region = regions_.at(chunk.buffer);
  if (is_zeros(chunk, digest)) {
    target.clear_chunk(region, chunk.offset);
    last = digest;
    return Step::kCleared;
  }
  if (!target.has_chunk(region, chunk.offset, digest, chunk.length_bytes)) return Step::kSend;
  last = digest;
  return Step::kKnown;
}

Result<std::uint64_t> ChunkSender::send(const ChunkSource& source, ChunkTarget& target) {
  transport::Channel& channel = target.channel();
  std::atomic<std::uint64_t> sent_bytes = 0;
  GCR_TRY(source(channel.useful_writers(),
                 [&](const ChunkRef& chunk, const digest::Digest& digest,
                     std::span<const std::byte> bytes) -> Status {
                   if (settle(chunk, digest, target) != Step::kSend) return {};
                   GCR_TRY(write(channel, regions_.at(chunk.buffer), chunk.offset, bytes));
                   digests_.at(chunk.buffer)[chunk.number()] = digest;
                   sent_bytes += bytes.size();
                   return {};
                 }));
  GCR_TRY(channel.flush());
  return sent_bytes.load();
}

}  // namespace gcr::mover

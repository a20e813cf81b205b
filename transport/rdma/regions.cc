#include "transport/rdma/regions.h"

#include <fmt/format.h>

namespace gcr::transport::rdma {
namespace {

constexpr int kWritableFromAfar = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

Status Regions::add(RegionId region, const DmaBuf& memory) {
  GCR_ASSIGN(auto registered, domains.register_all(memory, kWritableFromAfar));
  GCR_TRY(table_.add(region, memory.addresses));
  const std::lock_guard lock(mutex_);
  registered_[region] = std::move(registered);
  return {};
}

Status Regions::remove(RegionId region) {
  GCR_TRY(table_.remove(region));
  std::vector<MemoryRegion> removed;  // deregistered at the end, without the lock
  const std::lock_guard lock(mutex_);
  removed = std::move(registered_[region]);
  registered_.erase(region);
  return {};
}

Result<Message> Regions::key_for(const Message& question, const ibv_pd* domain) const {
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(question.region);
  if (found == registered_.end()) {
    return Error(Code::kNotFound, fmt::format("there is no region {}", question.region));
  }
  Message answer{
      .type = MessageType::kRegionKey, .region = question.region, .number = question.number};
  if (const ibv_mr* const memory = of_domain(found->second, domain)) {
    answer.offset = reinterpret_cast<std::uint64_t>(memory->addr);
    answer.length = memory->length;
    answer.key = memory->rkey;
  }
  return answer;
}

}  // namespace gcr::transport::rdma

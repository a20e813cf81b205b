#include "transport/rdma/regions.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::transport::rdma {
namespace {

constexpr int kWritableFromAfar = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

Result<ibv_pd*> Regions::add_device(ibv_context* device) {
  if (ibv_pd* const known = domain_of(device)) return known;
  GCR_ASSIGN(ProtectionDomain domain, make_protection_domain(device));
  return domains_.emplace_back(std::move(domain)).get();
}

ibv_pd* Regions::domain_of(const ibv_context* device) const {
  const auto found =
      std::find_if(domains_.begin(), domains_.end(),
                   [&](const ProtectionDomain& domain) { return domain->context == device; });
  return found == domains_.end() ? nullptr : found->get();
}

template <class Register>
Status Regions::add_registered(RegionId region, std::span<std::byte> bytes, Register how) {
  Registrations registrations;
  for (const ProtectionDomain& domain : domains_) {
    if (bytes.empty()) break;
    GCR_ASSIGN(MemoryRegion memory, how(domain.get()));
    registrations.push_back(std::move(memory));
  }
  GCR_TRY(table_.add(region, bytes));
  const std::lock_guard lock(mutex_);
  registered_[region] = std::move(registrations);
  return {};
}

Status Regions::add(RegionId region, std::span<std::byte> bytes) {
  return add_registered(region, bytes, [&](ibv_pd* domain) {
    return register_memory(domain, bytes, kWritableFromAfar);
  });
}

Status Regions::add_dmabuf(RegionId region, const DmaBuf& memory) {
  return add_registered(region, memory.addresses, [&](ibv_pd* domain) {
    return register_dmabuf(domain, memory, kWritableFromAfar);
  });
}

Status Regions::remove(RegionId region) {
  GCR_TRY(table_.remove(region));
  Registrations removed;  // deregistered at the end, without the lock
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
  for (const MemoryRegion& memory : found->second) {
    if (memory->pd != domain) continue;
    answer.offset = reinterpret_cast<std::uint64_t>(memory->addr);
    answer.length = memory->length;
    answer.key = memory->rkey;
  }
  return answer;
}

}  // namespace gcr::transport::rdma

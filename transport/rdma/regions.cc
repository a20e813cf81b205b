#include "transport/rdma/regions.h"

#include <fmt/format.h>

namespace gcr::transport::rdma {
namespace {

constexpr int kWritableFromAfar = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

Status Regions::add(RegionId region, std::span<std::byte> bytes) {
  GCR_ASSIGN(auto registered, domains.register_all(bytes, kWritableFromAfar));
  GCR_TRY(table_.add(region, bytes));
  const std::lock_guard lock(mutex_);
  regions_[region] = {bytes.size(), std::move(registered)};
  return {};
}

Status Regions::open_window(std::span<std::byte> bytes, unsigned lanes) {
  const std::lock_guard lock(mutex_);
  if (!window_.empty())
    return Error(Code::kInvalidArgument, "the landing window was opened before");
  GCR_ASSIGN(window_, domains.register_all(bytes, kWritableFromAfar));
  parts_.open(bytes, lanes);
  return {};
}

Status Regions::add_windowed(RegionId region, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (window_.empty()) return Error(Code::kInvalidArgument, "the landing window was not opened");
  GCR_TRY(table_.add_windowed(region, size_bytes));
  regions_[region] = {size_bytes, {}};
  return {};
}

Status Regions::remove(RegionId region) {
  GCR_TRY(table_.remove(region));
  Region removed;  // deregistered on return, after the lock was released
  const std::lock_guard lock(mutex_);
  removed = std::move(regions_[region]);
  regions_.erase(region);
  return {};
}

Result<Message> Regions::key_for(const Message& question, const ibv_pd* domain,
                                 const std::shared_ptr<const UniqueFd>& wake,
                                 std::shared_ptr<WindowPart>& part) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(question.region);
  if (found == regions_.end()) {
    return Error(Code::kNotFound, fmt::format("there is no region {}", question.region));
  }
  const auto& [size_bytes, registered] = found->second;
  Message answer{.type = MessageType::kRegionKey,
                 .region = question.region,
                 .number = question.number,
                 .length = size_bytes};
  const bool windowed = registered.empty();
  const ibv_mr* const memory = of_domain(windowed ? window_ : registered, domain);
  if (memory == nullptr)
    return Error(Code::kInternal, "the lane uses a device with which no region is registered");
  answer.offset = reinterpret_cast<std::uint64_t>(memory->addr);
  answer.key = memory->rkey;
  if (!windowed) return answer;
  if (!part) part = parts_.claim(wake);
  if (!part)
    return Error(Code::kResourceExhausted,
                 "all parts of the landing window are in use by other lanes");
  answer.offset = reinterpret_cast<std::uint64_t>(part->bytes().data());
  answer.places = part->places();
  return answer;
}

}  // namespace gcr::transport::rdma

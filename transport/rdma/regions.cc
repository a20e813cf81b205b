#include "transport/rdma/regions.h"

#include <fmt/format.h>

#include <algorithm>

#include "transport/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

constexpr int kWritableFromAfar = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

WindowPart::WindowPart(std::span<std::byte> bytes, std::shared_ptr<const UniqueFd> wake)
    : bytes_(bytes), wake_(std::move(wake)), taken_(bytes.size() / kPlaceBytes) {}

Result<Place> WindowPart::claim(std::uint64_t number, std::uint64_t length_bytes,
                                std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  if (number >= taken_.size() || taken_[number] || length_bytes > kPlaceBytes) {
    return Error(Code::kProtocol,
                 fmt::format("the sender wrote {} bytes into place {} of {}, which it may not use "
                             "now",
                             length_bytes, number, taken_.size()));
  }
  taken_[number] = true;
  return Place(bytes_.subspan(number * kPlaceBytes, length_bytes),
               [part = shared_from_this(), number, request] { part->release(number, request); });
}

void WindowPart::release(std::size_t number, std::uint64_t request) {
  {
    const std::lock_guard lock(mutex_);
    taken_[number] = false;
    released_.push_back(request);
  }
  wake_up(*wake_);
}

std::vector<std::uint64_t> WindowPart::take_released(std::size_t most) {
  const std::lock_guard lock(mutex_);
  const auto end =
      released_.begin() + static_cast<std::ptrdiff_t>(std::min(most, released_.size()));
  std::vector<std::uint64_t> requests(released_.begin(), end);
  released_.erase(released_.begin(), end);
  return requests;
}

/// Returns a part that no lane uses; null if there is none. mutex_ is held.
std::shared_ptr<WindowPart> Regions::claim_part(std::shared_ptr<const UniqueFd> wake) {
  const auto free = std::ranges::find_if(parts_, [](const auto& part) { return part.expired(); });
  if (free == parts_.end()) return nullptr;
  const auto number = static_cast<std::size_t>(free - parts_.begin());
  auto part = std::make_shared<WindowPart>(window_.subspan(number * part_bytes_, part_bytes_),
                                           std::move(wake));
  *free = part;
  return part;
}

Status Regions::add(RegionId region, std::span<std::byte> bytes) {
  GCR_ASSIGN(auto registered, domains.register_all(bytes, kWritableFromAfar));
  GCR_TRY(table_.add(region, bytes));
  const std::lock_guard lock(mutex_);
  regions_[region] = {bytes.size(), std::move(registered)};
  return {};
}

Status Regions::open_window(std::span<std::byte> bytes, unsigned lanes) {
  const std::lock_guard lock(mutex_);
  if (!window_registered_.empty())
    return Error(Code::kInvalidArgument, "the landing window was opened before");
  GCR_ASSIGN(window_registered_, domains.register_all(bytes, kWritableFromAfar));
  const std::size_t places = std::min<std::size_t>(bytes.size() / kPlaceBytes / lanes, kMaxDepth);
  part_bytes_ = places * kPlaceBytes;
  window_ = bytes;
  parts_.resize(lanes);
  return {};
}

Status Regions::add_windowed(RegionId region, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (window_registered_.empty()) {
    return Error(Code::kInvalidArgument, "the landing window was not opened");
  }
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
  const ibv_mr* const memory = of_domain(windowed ? window_registered_ : registered, domain);
  if (memory == nullptr)
    return Error(Code::kInternal, "the lane uses a device with which no region is registered");
  answer.offset = reinterpret_cast<std::uint64_t>(memory->addr);
  answer.key = memory->rkey;
  if (!windowed) return answer;
  if (!part) part = claim_part(wake);
  if (!part)
    return Error(Code::kResourceExhausted,
                 "all parts of the landing window are in use by other lanes");
  answer.offset = reinterpret_cast<std::uint64_t>(part->bytes().data());
  answer.places = part->places();
  return answer;
}

}  // namespace gcr::transport::rdma

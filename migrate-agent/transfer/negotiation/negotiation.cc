#include "migrate-agent/transfer/negotiation/negotiation.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/units.h"

namespace gcr::transfer {
namespace {

/// What one connection carries at least, TLS included, where a core is free for it at either end
/// (docs/benchmarks.md, Transports).
constexpr std::uint64_t kLaneBytesPerSecond = 1'000'000'000;
constexpr unsigned kLeastLanes = 2;
constexpr unsigned kMostDefaultLanes = 16;

constexpr const char* kConfigure = "set unencrypted_data = true in its agent.toml to allow it";

/// Why data must be encrypted; empty if it need not be.
std::string why_encrypted(const proto::DataOffer& source, const proto::DataOffer& destination) {
  if (!source.unencrypted()) {
    return fmt::format("the source's agent sends no data unencrypted ({})", kConfigure);
  }
  if (!destination.unencrypted()) {
    return fmt::format("the destination's agent takes no data unencrypted ({})", kConfigure);
  }
  return {};
}

/// Empty if RDMA can be had.
std::string why_not_rdma(const proto::DataOffer& source, const proto::DataOffer& destination) {
  if (!source.no_rdma().empty()) return "the source has no RDMA: " + source.no_rdma();
  if (!destination.no_rdma().empty()) {
    return "the destination has no RDMA: " + destination.no_rdma();
  }
  const std::string encrypted = why_encrypted(source, destination);
  return encrypted.empty() ? "" : "RDMA does not encrypt, and " + encrypted;
}

Result<DataPlan> plan_tcp(const DataWish& wish, const proto::DataOffer& source,
                          const proto::DataOffer& destination, std::string reason) {
  const std::string encrypted = why_encrypted(source, destination);
  if (wish.plaintext && !encrypted.empty()) return Error(Code::kRefused, encrypted);
  return DataPlan{.transport = proto::TRANSPORT_TCP,
                  .encrypted = !wish.plaintext,
                  .lanes = wish.lanes != 0 ? std::min(wish.lanes, kMaxLanes)
                                           : default_lanes(source, destination),
                  .reason = std::move(reason)};
}

}  // namespace

unsigned default_lanes(const proto::DataOffer& source, const proto::DataOffer& destination) {
  unsigned lanes = std::min(source.cores(), destination.cores()) / 2;
  for (const proto::DataOffer* offer : {&source, &destination}) {
    if (offer->link_bytes_per_s() == 0) continue;
    const std::uint64_t filled = (offer->link_bytes_per_s() - 1) / kLaneBytesPerSecond + 1;
    lanes = static_cast<unsigned>(std::min<std::uint64_t>(lanes, filled));
  }
  return std::clamp(lanes, kLeastLanes, kMostDefaultLanes);
}

Result<DataPlan> plan_data(const DataWish& wish, const proto::DataOffer& source,
                           const proto::DataOffer& destination) {
  if (wish.transport == proto::TRANSPORT_TCP) return plan_tcp(wish, source, destination, {});
  std::string reason = why_not_rdma(source, destination);
  if (!reason.empty()) return plan_without_rdma(wish, source, destination, reason);
  return DataPlan{.transport = proto::TRANSPORT_RDMA,
                  .encrypted = false,
                  .lanes = wish.lanes != 0 ? std::min(wish.lanes, kMaxLanes) : kLeastLanes,
                  .reason = {}};
}

Result<DataPlan> plan_without_rdma(const DataWish& wish, const proto::DataOffer& source,
                                   const proto::DataOffer& destination, const std::string& reason) {
  if (wish.transport == proto::TRANSPORT_RDMA) return Error(Code::kRefused, reason);
  return plan_tcp(wish, source, destination, reason);
}

Status check_decision(const DataWish& wish, const proto::DataOffer& source,
                      proto::Transport transport, bool encrypted) {
  const bool rdma = transport == proto::TRANSPORT_RDMA;
  const bool by_name =
      wish.transport == proto::TRANSPORT_TCP || wish.transport == proto::TRANSPORT_RDMA;
  if ((!rdma && transport != proto::TRANSPORT_TCP) || (by_name && wish.transport != transport)) {
    return Error(Code::kProtocol, "the destination chose another transport than may be used");
  }
  if (!rdma && encrypted) return {};
  if (!source.unencrypted()) {
    return Error(
        Code::kProtocol,
        fmt::format("the destination chose unencrypted data, which the source's agent does "
                    "not send ({})",
                    kConfigure));
  }
  if (rdma && encrypted) return Error(Code::kProtocol, "the destination takes RDMA for encrypted");
  if (rdma || wish.plaintext) return {};
  return Error(
      Code::kProtocol,
      "the destination chose unencrypted data, and the operator did not ask for data without TLS");
}

}  // namespace gcr::transfer

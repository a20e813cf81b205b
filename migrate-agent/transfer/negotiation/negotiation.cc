#include "migrate-agent/transfer/negotiation/negotiation.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "src/base/unique_fd.h"
#include "transport/rdma/rdma.h"

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

constexpr std::uint64_t kBytesPerMegabit = 1'000'000 / 8;

template <class Command>
bool ask_driver(int socket, const char* interface, Command& command) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  return ::ioctl(socket, SIOCETHTOOL, &request) == 0;
}

/// 0 if it is virtual, has no carrier, or does not say.
std::uint64_t speed_of(int socket, const char* interface) {
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  if (!ask_driver(socket, interface, driver) || driver.bus_info[0] == '\0') return 0;
  ethtool_cmd link{};
  link.cmd = ETHTOOL_GSET;
  if (!ask_driver(socket, interface, link)) return 0;
  const std::uint32_t megabits = ethtool_cmd_speed(&link);
  return megabits == static_cast<std::uint32_t>(SPEED_UNKNOWN) ? 0 : megabits * kBytesPerMegabit;
}

std::uint64_t fastest_link() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifaddrs* list = nullptr;
  if (!socket || ::getifaddrs(&list) != 0) return 0;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::uint64_t fastest = 0;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_RUNNING) == 0) continue;
    fastest = std::max(fastest, speed_of(socket.get(), at->ifa_name));
  }
  return fastest;
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

proto::DataOffer data_offer(bool unencrypted) {
  proto::DataOffer offer;
  offer.set_unencrypted(unencrypted);
  offer.set_cores(std::max(1U, std::thread::hardware_concurrency()));
  offer.set_link_bytes_per_s(fastest_link());
  offer.set_no_rdma(transport::why_no_rdma());
  return offer;
}

}  // namespace gcr::transfer

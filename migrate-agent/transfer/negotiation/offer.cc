#include "migrate-agent/transfer/negotiation/offer.h"

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

proto::DataOffer data_offer(bool unencrypted) {
  proto::DataOffer offer;
  offer.set_unencrypted(unencrypted);
  offer.set_cores(std::max(1U, std::thread::hardware_concurrency()));
  offer.set_link_bytes_per_s(fastest_link());
  offer.set_no_rdma(transport::why_no_rdma());
  return offer;
}

}  // namespace gcr::transfer

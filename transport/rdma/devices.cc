// Whether a transfer can use the RDMA devices of this host.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <set>
#include <span>
#include <utility>

#include "transport/rdma/rdma.h"
#include "transport/rdma/verbs.h"

namespace gcr::transport {
namespace rdma {
namespace {

using DeviceContext = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using PortName = std::pair<std::string, unsigned>;

/// Whether a peer on another host could use the interface's address.
bool is_of_a_network(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (interface.ifa_addr->sa_family == AF_INET) return true;
  if (interface.ifa_addr->sa_family != AF_INET6) return false;
  const auto* const address = reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr);
}

/// Returns the ports that librdmacm finds for the addresses of this network namespace.
Result<std::set<PortName>> ports_with_address() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return Error::from_errno(errno, "cannot list network addresses");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  GCR_ASSIGN(const EventChannel events, make_event_channel());
  std::set<PortName> found;
  for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
    if (!is_of_a_network(*interface)) continue;
    GCR_ASSIGN(const ConnectionId id, make_id(events.get()));
    if (rdma_bind_addr(id.get(), interface->ifa_addr) != 0 || id->verbs == nullptr) continue;
    found.emplace(ibv_get_device_name(id->verbs->device), id->port_num);
  }
  return found;
}

/// Returns why no port of any device is usable; an empty text if one is.
Result<std::string> find_reason() {
  GCR_TRY(check_rdma_available());
  int count = 0;
  const std::unique_ptr<ibv_device*, Destroyer<ibv_free_device_list>> list(
      ibv_get_device_list(&count));
  if (!list) return verbs_error("list RDMA devices");
  GCR_ASSIGN(const auto addressed, ports_with_address());
  std::string reason;
  for (ibv_device* const device : std::span(list.get(), static_cast<std::size_t>(count))) {
    const DeviceContext context(ibv_open_device(device));
    ibv_device_attr attributes{};
    if (!context || ibv_query_device(context.get(), &attributes) != 0) continue;
    const std::string name = ibv_get_device_name(device);
    for (unsigned number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr port{};
      if (ibv_query_port(context.get(), static_cast<std::uint8_t>(number), &port) != 0) continue;
      const bool active = port.state == IBV_PORT_ACTIVE;
      if (active && addressed.contains({name, number})) return std::string();
      reason += fmt::format("{}{} port {} {}{}", reason.empty() ? "" : ", ", name, number,
                            active ? "has no network address" : "is ",
                            active ? "" : ibv_port_state_str(port.state));
    }
  }
  return reason.empty() ? "no RDMA device can be opened" : reason;
}

}  // namespace
}  // namespace rdma

std::string why_no_rdma() {
  const auto reason = rdma::find_reason();
  return reason ? *reason : reason.error().message();
}

}  // namespace gcr::transport

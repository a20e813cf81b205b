#include "transport/rdma/devices.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "transport/rdma/verbs.h"

namespace gcr::transport {
namespace rdma {
namespace {

using DeviceContext = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using PortName = std::pair<std::string, unsigned>;

/// Decodes width and speed of a port (InfiniBand, 14.2.5.6, PortInfo, with the newer speeds).
double rate_of(const ibv_port_attr& port) {
  static const std::map<unsigned, double> kSpeeds{
      {1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}, {256, 200}};
  static const std::map<unsigned, unsigned> kWidths{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  const auto speed = kSpeeds.find(port.active_speed);
  const auto width = kWidths.find(port.active_width);
  return speed == kSpeeds.end() || width == kWidths.end() ? 0 : speed->second * width->second;
}

/// Whether a peer on another host could use the interface's address.
bool is_of_a_network(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (interface.ifa_addr->sa_family == AF_INET) return true;
  if (interface.ifa_addr->sa_family != AF_INET6) return false;
  const auto* const address = reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr);
}

/// Formats `address` numerically, without a port.
std::string numeric_host(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  }
  if (::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr) return {};
  return text.data();
}

/// Collects the addresses of this network namespace by the RDMA port that librdmacm finds for each.
Result<std::map<PortName, std::vector<std::string>>> addresses_of_ports() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return Error::from_errno(errno, "cannot list network addresses");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  GCR_ASSIGN(const EventChannel events, make_event_channel());
  std::map<PortName, std::vector<std::string>> found;
  for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
    if (!is_of_a_network(*interface)) continue;
    GCR_ASSIGN(const ConnectionId id, make_id(events.get()));
    if (rdma_bind_addr(id.get(), interface->ifa_addr) != 0 || id->verbs == nullptr) continue;
    found[{ibv_get_device_name(id->verbs->device), id->port_num}].push_back(
        numeric_host(interface->ifa_addr));
  }
  return found;
}

std::vector<RdmaDevice> ports_of(ibv_device* device) {
  std::vector<RdmaDevice> ports;
  const DeviceContext context(ibv_open_device(device));
  ibv_device_attr attributes{};
  if (!context || ibv_query_device(context.get(), &attributes) != 0) return ports;
  const auto domain = make_protection_domain(context.get());
  for (unsigned number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (ibv_query_port(context.get(), static_cast<std::uint8_t>(number), &port) != 0) continue;
    ports.push_back(
        {.name = ibv_get_device_name(device),
         .port = static_cast<std::uint8_t>(number),
         .active = port.state == IBV_PORT_ACTIVE,
         .state = ibv_port_state_str(port.state),
         .link_layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
         .gigabits_per_second = rate_of(port),
         .dma_buf = domain && can_register_dmabuf(domain->get()),
         .addresses = {}});
  }
  return ports;
}

Result<std::vector<RdmaDevice>> list_devices() {
  GCR_TRY(check_rdma_available());
  int count = 0;
  const std::unique_ptr<ibv_device*, Destroyer<ibv_free_device_list>> list(
      ibv_get_device_list(&count));
  if (!list) return verbs_error("list RDMA devices");
  GCR_ASSIGN(const auto addresses, addresses_of_ports());
  std::vector<RdmaDevice> devices;
  for (int i = 0; i < count; ++i) {
    for (RdmaDevice& port : ports_of(list.get()[i])) {
      const auto found = addresses.find({port.name, port.port});
      if (found != addresses.end()) port.addresses = found->second;
      devices.push_back(std::move(port));
    }
  }
  return devices;
}

/// Explains why none of `devices` is usable; empty if one is.
std::string reason_of(const std::vector<RdmaDevice>& devices) {
  std::string reason;
  for (const RdmaDevice& device : devices) {
    if (device.usable()) return {};
    reason += fmt::format("{}{} port {} {}", reason.empty() ? "" : ", ", device.name, device.port,
                          device.active ? "has no network address" : "is " + device.state);
  }
  return reason.empty() ? "no RDMA device can be opened" : reason;
}

}  // namespace
}  // namespace rdma

RdmaSurvey rdma_devices() {
  auto devices = rdma::list_devices();
  if (!devices) return {.devices = {}, .reason = devices.error().message()};
  std::string reason = rdma::reason_of(*devices);
  return {.devices = std::move(*devices), .reason = std::move(reason)};
}

}  // namespace gcr::transport

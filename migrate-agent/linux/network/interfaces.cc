#include "migrate-agent/linux/network/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netlink/errno.h>
#include <netlink/netlink.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/route/route.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "src/base/log.h"

namespace gcr::network {
namespace {

constexpr unsigned kHardwareBytes = 6;
constexpr char kDetour[] = "lo";
constexpr std::size_t kMostBytes = 1024;
constexpr int kFamilies[] = {AF_INET, AF_INET6};

template <auto kRelease>
struct Release {
  template <class T>
  void operator()(T* object) const {
    kRelease(object);
  }
};
using Socket = std::unique_ptr<nl_sock, Release<::nl_socket_free>>;
using Cache = std::unique_ptr<nl_cache, Release<::nl_cache_free>>;
using Number = std::unique_ptr<nl_addr, Release<::nl_addr_put>>;
using Link = std::unique_ptr<rtnl_link, Release<::rtnl_link_put>>;
using Address = std::unique_ptr<rtnl_addr, Release<::rtnl_addr_put>>;
using Route = std::unique_ptr<rtnl_route, Release<::rtnl_route_put>>;

Error failed(const std::string& what, int error) {
  return Error(Code::kUnavailable, fmt::format("cannot {}: {}", what, ::nl_geterror(error)));
}

/// Success also if the kernel answers `fine`.
Status check(const std::string& what, int error, int fine = 0) {
  if (error >= 0 || error == -fine) return {};
  return failed(what, error);
}

Result<Socket> connect() {
  Socket socket(::nl_socket_alloc());
  if (socket == nullptr) return failed("reach rtnetlink", -NLE_NOMEM);
  GCR_TRY(check("reach rtnetlink", ::nl_connect(socket.get(), NETLINK_ROUTE)));
  return socket;
}

Result<Cache> list(const std::string& what, const std::function<int(nl_cache**)>& allocate) {
  nl_cache* cache = nullptr;
  GCR_TRY(check("list " + what, allocate(&cache)));
  return Cache(cache);
}

Result<Cache> list_addresses(nl_sock* socket) {
  return list("addresses", [&](nl_cache** to) { return ::rtnl_addr_alloc_cache(socket, to); });
}

std::string text_of(nl_addr* address) {
  if (address == nullptr) return {};
  std::array<char, 128> text{};
  return ::nl_addr2str(address, text.data(), text.size());
}

/// Null if it is none.
Number parse(const std::string& text, int family) {
  nl_addr* address = nullptr;
  if (::nl_addr_parse(text.c_str(), family, &address) < 0) return nullptr;
  return Number(address);
}

Result<Number> parse_or_refuse(const std::string& text, int family) {
  Number address = parse(text, family);
  if (address == nullptr)
    return Error(Code::kProtocol, "there is no address of this kind: " + text);
  return address;
}

template <class T>
void for_each(const Cache& cache, const std::function<void(T*)>& visit) {
  for (nl_object* object = ::nl_cache_get_first(cache.get()); object != nullptr;
       object = ::nl_cache_get_next(object)) {
    visit(reinterpret_cast<T*>(object));
  }
}

bool is_ours(rtnl_addr* address, int interface) {
  const int family = ::rtnl_addr_get_family(address);
  return ::rtnl_addr_get_ifindex(address) == interface &&
         std::ranges::find(kFamilies, family) != std::end(kFamilies) &&
         (::rtnl_addr_get_flags(address) & IFA_F_TEMPORARY) == 0;
}

void add_address(rtnl_addr* address, proto::NetworkInterface& out) {
  proto::NetworkAddress& added = *out.add_addresses();
  added.set_address(text_of(::rtnl_addr_get_local(address)));
  if (added.address().find('/') == std::string::npos) {
    added.set_address(fmt::format("{}/{}", added.address(), ::rtnl_addr_get_prefixlen(address)));
  }
  added.set_broadcast(text_of(::rtnl_addr_get_broadcast(address)));
}

/// The only way of a route that is not the kernel's own; null for others.
rtnl_nexthop* way_of(rtnl_route* route) {
  const bool made = ::rtnl_route_get_table(route) == RT_TABLE_MAIN &&
                    ::rtnl_route_get_type(route) == RTN_UNICAST &&
                    ::rtnl_route_get_protocol(route) != RTPROT_KERNEL;
  return made && ::rtnl_route_get_nnexthops(route) == 1 ? ::rtnl_route_nexthop_n(route, 0)
                                                        : nullptr;
}

void add_route(rtnl_route* route, rtnl_nexthop* way, proto::NetworkInterface& out) {
  proto::NetworkRoute& added = *out.add_routes();
  nl_addr* const target = ::rtnl_route_get_dst(route);
  added.set_ipv6(::rtnl_route_get_family(route) == AF_INET6);
  added.set_target(::nl_addr_get_len(target) == 0 || ::nl_addr_get_prefixlen(target) == 0
                       ? "default"
                       : text_of(target));
  added.set_gateway(text_of(::rtnl_route_nh_get_gateway(way)));
  added.set_source(text_of(::rtnl_route_get_pref_src(route)));
  added.set_priority(::rtnl_route_get_priority(route));
}

Result<int> number_of(const std::string& interface) {
  const unsigned number = ::if_nametoindex(interface.c_str());
  if (number != 0) return static_cast<int>(number);
  return Error(Code::kUnavailable, "there is no network interface " + interface);
}

/// Its state, up or down, and its hardware address unless this is null.
Status change_link(nl_sock* socket, int number, bool up, nl_addr* hardware) {
  const Link now(::rtnl_link_alloc());
  const Link wanted(::rtnl_link_alloc());
  if (now == nullptr || wanted == nullptr) return failed("change an interface", -NLE_NOMEM);
  ::rtnl_link_set_ifindex(now.get(), number);
  ::rtnl_link_set_ifindex(wanted.get(), number);
  if (up) {
    ::rtnl_link_set_flags(wanted.get(), IFF_UP);
  } else {
    ::rtnl_link_unset_flags(wanted.get(), IFF_UP);
  }
  if (hardware != nullptr) ::rtnl_link_set_addr(wanted.get(), hardware);
  return check(fmt::format("take interface {} {}", number, up ? "up" : "down"),
               ::rtnl_link_change(socket, now.get(), wanted.get(), 0));
}

Status put_address(nl_sock* socket, int interface, const proto::NetworkAddress& wanted) {
  GCR_ASSIGN(const Number number, parse_or_refuse(wanted.address(), AF_UNSPEC));
  const Address address(::rtnl_addr_alloc());
  if (address == nullptr) return failed("add an address", -NLE_NOMEM);
  ::rtnl_addr_set_ifindex(address.get(), interface);
  GCR_TRY(check("add " + wanted.address(), ::rtnl_addr_set_local(address.get(), number.get())));
  if (::nl_addr_get_family(number.get()) == AF_INET6) {
    // The source had it, so there is nothing to detect, and it can be used at once.
    ::rtnl_addr_set_flags(address.get(), IFA_F_NODAD);
  } else if (const Number broadcast = parse(wanted.broadcast(), AF_INET); broadcast != nullptr) {
    ::rtnl_addr_set_broadcast(address.get(), broadcast.get());
  }
  return check("add " + wanted.address(), ::rtnl_addr_add(socket, address.get(), 0), NLE_EXIST);
}

Status drop_addresses(nl_sock* socket, int interface) {
  GCR_ASSIGN(const Cache addresses, list_addresses(socket));
  Status dropped;
  for_each<rtnl_addr>(addresses, [&](rtnl_addr* address) {
    if (!dropped || !is_ours(address, interface)) return;
    // The kernel removes those of the same subnet with the first one, unless they are promoted.
    dropped = check("remove " + text_of(::rtnl_addr_get_local(address)),
                    ::rtnl_addr_delete(socket, address, 0), NLE_NOADDR);
  });
  return dropped;
}

Result<Route> make_route(const proto::NetworkRoute& wanted, int interface) {
  const int family = wanted.ipv6() ? AF_INET6 : AF_INET;
  Route route(::rtnl_route_alloc());
  rtnl_nexthop* const way = ::rtnl_route_nh_alloc();
  if (route == nullptr || way == nullptr) return failed("add a route", -NLE_NOMEM);
  ::rtnl_route_nh_set_ifindex(way, interface);
  ::rtnl_route_add_nexthop(route.get(), way);  // which owns it now
  ::rtnl_route_set_family(route.get(), static_cast<std::uint8_t>(family));
  ::rtnl_route_set_table(route.get(), RT_TABLE_MAIN);
  ::rtnl_route_set_protocol(route.get(), RTPROT_STATIC);
  ::rtnl_route_set_priority(route.get(), wanted.priority());
  const bool far = !wanted.gateway().empty();
  ::rtnl_route_set_scope(route.get(), far || wanted.ipv6() ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK);
  GCR_ASSIGN(const Number target, parse_or_refuse(wanted.target(), family));
  ::rtnl_route_set_dst(route.get(), target.get());
  if (far) {
    GCR_ASSIGN(const Number gateway, parse_or_refuse(wanted.gateway(), family));
    ::rtnl_route_nh_set_gateway(way, gateway.get());
  }
  if (!wanted.source().empty()) {
    GCR_ASSIGN(const Number source, parse_or_refuse(wanted.source(), family));
    ::rtnl_route_set_pref_src(route.get(), source.get());
  }
  return route;
}

Status put_route(nl_sock* socket, int interface, const proto::NetworkRoute& wanted) {
  GCR_ASSIGN(const Route route, make_route(wanted, interface));
  return check(fmt::format("add the route to {}", wanted.target()),
               ::rtnl_route_add(socket, route.get(), NLM_F_CREATE | NLM_F_EXCL), NLE_EXIST);
}

proto::NetworkRoute detour(int family) {
  proto::NetworkRoute route;
  route.set_ipv6(family == AF_INET6);
  route.set_target("default");
  return route;
}

Status make_detour(nl_sock* socket) {
  GCR_ASSIGN(const int loopback, number_of(kDetour));
  for (const int family : kFamilies) {
    const Status made = put_route(socket, loopback, detour(family));
    if (!made && family == AF_INET) return made;  // IPv6 may be switched off
  }
  return {};
}

void remove_detour(nl_sock* socket) {
  const auto loopback = number_of(kDetour);
  if (!loopback) return;
  for (const int family : kFamilies) {
    const auto route = make_route(detour(family), *loopback);
    if (route) ::rtnl_route_delete(socket, route->get(), 0);
  }
}

/// Those that need no gateway first: they lead to gateways.
Status put_routes(nl_sock* socket, int number, const proto::NetworkInterface& interface) {
  for (const bool far : {false, true}) {
    for (const proto::NetworkRoute& route : interface.routes()) {
      if (route.gateway().empty() == far) continue;
      GCR_TRY(put_route(socket, number, route));
    }
  }
  return {};
}

/// Whether two addresses with prefixes are in one subnet.
bool are_neighbours(const std::string& one, const std::string& other) {
  const Number a = parse(one, AF_UNSPEC);
  const Number b = parse(other, AF_UNSPEC);
  return a != nullptr && b != nullptr &&
         ::nl_addr_get_family(a.get()) == ::nl_addr_get_family(b.get()) &&
         ::nl_addr_get_prefixlen(a.get()) == ::nl_addr_get_prefixlen(b.get()) &&
         ::nl_addr_cmp_prefix(a.get(), b.get()) == 0;
}

bool has_neighbour(const proto::NetworkInterface& interface, const std::string& address) {
  return std::ranges::any_of(interface.addresses(), [&](const proto::NetworkAddress& own) {
    return are_neighbours(own.address(), address);
  });
}

/// Whether it waits for the addresses that come. It has no routes of its own then either.
bool is_bare(const proto::NetworkInterface& interface) { return interface.addresses().empty(); }

bool has_address(const proto::NetworkInterface& interface, const std::string& address) {
  return std::ranges::any_of(interface.addresses(), [&](const proto::NetworkAddress& own) {
    return plain(own) == address;
  });
}

/// The first address of `coming` that is in no subnet of an interface. Null if there is none.
const proto::NetworkAddress* address_without_place(const proto::NetworkInterface& coming,
                                                   const proto::NetworkInterface& own) {
  const auto found = std::ranges::find_if(
      coming.addresses(),
      [&](const proto::NetworkAddress& each) { return !has_neighbour(own, each.address()); });
  return found == coming.addresses().end() ? nullptr : &*found;
}

/// The interface here that takes the place of one that comes, preferably the one with its name.
/// Each takes one place: `taken` has those that others have.
Result<const proto::NetworkInterface*> find_place(const proto::NetworkInterface& coming,
                                                  const proto::Network& here,
                                                  const proto::Network& taken) {
  const auto named = [](const proto::Network& network, const std::string& name) {
    const auto found =
        std::ranges::find(network.interfaces(), name, &proto::NetworkInterface::name);
    return found == network.interfaces().end() ? nullptr : &*found;
  };
  const auto is_free = [&](const proto::NetworkInterface& own) {
    return named(taken, own.name()) == nullptr;
  };
  const auto fits = [&](const proto::NetworkInterface& own) {
    return is_free(own) && !is_bare(own) && address_without_place(coming, own) == nullptr;
  };
  const proto::NetworkInterface* const same = named(here, coming.name());
  if (same != nullptr && ((is_bare(*same) && is_free(*same)) || fits(*same))) return same;
  const auto other = std::ranges::find_if(here.interfaces(), fits);
  if (other != here.interfaces().end()) return &*other;
  if (same == nullptr) {
    return Error(Code::kRefused,
                 fmt::format("there is no interface {}, and none in its subnets", coming.name()));
  }
  if (!is_free(*same)) {
    return Error(Code::kRefused,
                 fmt::format("interface {} takes the place of another one", coming.name()));
  }
  return Error(Code::kRefused,
               fmt::format("interface {} has no address in the subnet of {}", coming.name(),
                           address_without_place(coming, *same)->address()));
}

}  // namespace

Result<proto::Network> read_interfaces() {
  GCR_ASSIGN(const Socket socket, connect());
  GCR_ASSIGN(const Cache links, list("interfaces", [&](nl_cache** to) {
               return ::rtnl_link_alloc_cache(socket.get(), AF_UNSPEC, to);
             }));
  GCR_ASSIGN(const Cache addresses, list_addresses(socket.get()));
  GCR_ASSIGN(const Cache routes, list("routes", [&](nl_cache** to) {
               return ::rtnl_route_alloc_cache(socket.get(), AF_UNSPEC, 0, to);
             }));
  proto::Network network;
  for_each<rtnl_link>(links, [&](rtnl_link* link) {
    const unsigned flags = ::rtnl_link_get_flags(link);
    if ((flags & IFF_UP) == 0 || (flags & IFF_LOOPBACK) != 0) return;
    proto::NetworkInterface& out = *network.add_interfaces();
    const int number = ::rtnl_link_get_ifindex(link);
    out.set_name(::rtnl_link_get_name(link));
    nl_addr* const hardware = ::rtnl_link_get_addr(link);
    if (hardware != nullptr && ::nl_addr_get_len(hardware) == kHardwareBytes) {
      out.set_hardware_address(::nl_addr_get_binary_addr(hardware), kHardwareBytes);
    }
    for_each<rtnl_addr>(addresses, [&](rtnl_addr* address) {
      if (is_ours(address, number)) add_address(address, out);
    });
    for_each<rtnl_route>(routes, [&](rtnl_route* route) {
      rtnl_nexthop* const way = way_of(route);
      if (way != nullptr && ::rtnl_route_nh_get_ifindex(way) == number) add_route(route, way, out);
    });
  });
  return network;
}

std::string plain(const proto::NetworkAddress& address) {
  return address.address().substr(0, address.address().find('/'));
}

bool is_link_local(const std::string& address) {
  in6_addr number{};
  return ::inet_pton(AF_INET6, address.c_str(), &number) == 1 && IN6_IS_ADDR_LINKLOCAL(&number);
}

Status check_size(const proto::Network& network) {
  if (network.ByteSizeLong() <= kMostBytes) return {};
  return Error(Code::kRefused, "there are too many addresses and routes");
}

Result<proto::Network> merge(const proto::Network& coming, const proto::Network& here) {
  GCR_TRY(check_size(coming));
  proto::Network merged;
  for (const proto::NetworkInterface& interface : coming.interfaces()) {
    GCR_ASSIGN(const proto::NetworkInterface* const own, find_place(interface, here, merged));
    proto::NetworkInterface& out = *merged.add_interfaces();
    out.set_name(own->name());
    out.set_hardware_address(interface.hardware_address());
    *out.mutable_addresses() = interface.addresses();
    for (const proto::NetworkRoute& route : is_bare(*own) ? interface.routes() : own->routes()) {
      proto::NetworkRoute& added = *out.add_routes();
      added = route;
      if (!has_address(interface, route.source())) added.clear_source();
    }
  }
  GCR_TRY(check_size(merged));
  return merged;
}

Status take_down(const proto::Network& network) {
  GCR_ASSIGN(const Socket socket, connect());
  for (const proto::NetworkInterface& interface : network.interfaces()) {
    GCR_ASSIGN(const int number, number_of(interface.name()));
    GCR_TRY(change_link(socket.get(), number, false, nullptr));
  }
  return {};
}

Status take_over(const proto::Network& network) {
  GCR_TRY(take_down(network));
  GCR_ASSIGN(const Socket socket, connect());
  for (const proto::NetworkInterface& interface : network.interfaces()) {
    GCR_ASSIGN(const int number, number_of(interface.name()));
    GCR_TRY(drop_addresses(socket.get(), number));
    if (interface.hardware_address().size() == kHardwareBytes) {
      const Number hardware(
          ::nl_addr_build(AF_LLC, interface.hardware_address().data(), kHardwareBytes));
      // Not every kind of interface has one of its own (ipvlan): neighbours are told the one it
      // has.
      const Status moved = change_link(socket.get(), number, false, hardware.get());
      if (!moved)
        spdlog::info("{} keeps its hardware address: {}", interface.name(),
                     moved.error().message());
    }
    for (const proto::NetworkAddress& address : interface.addresses()) {
      GCR_TRY(put_address(socket.get(), number, address));
    }
  }
  return make_detour(socket.get());
}

Status bring_up(const proto::Network& network) {
  GCR_ASSIGN(const Socket socket, connect());
  remove_detour(socket.get());
  for (const proto::NetworkInterface& interface : network.interfaces()) {
    GCR_ASSIGN(const int number, number_of(interface.name()));
    GCR_TRY(change_link(socket.get(), number, true, nullptr));
    for (const proto::NetworkAddress& address : interface.addresses()) {
      GCR_TRY(put_address(socket.get(), number, address));
    }
    GCR_TRY(put_routes(socket.get(), number, interface));
  }
  return {};
}

}  // namespace gcr::network

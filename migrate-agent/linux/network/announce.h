// What neighbours are told, and asked, about addresses: ARP (RFC 826, RFC 5227) for IPv4, neighbour
// discovery (RFC 4861, 7.2.6; RFC 4862, 5.4) for IPv6. In the network namespace of the calling
// thread.
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::network {

/// Tells each neighbour of the interfaces, once, which hardware address the addresses have now.
/// Those that are link-local belong to the hardware address, and are left out. No host answers, so
/// the caller repeats it.
Status announce(const proto::Network& network);

/// Asks who has an address, as a host asks before it takes it, on an interface that is up;
/// again as long as no host answers. The hardware addresses that answer, 6 bytes each. Waits for
/// `patience` if no host does, else only for a moment in which another one may answer too.
Result<std::set<std::string>> who_has(const std::string& interface, const std::string& address,
                                      std::chrono::milliseconds patience);

}  // namespace gcr::network

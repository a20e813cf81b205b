// The network interfaces of a job that has a network namespace of its own, whose addresses move
// with it.
//
// At most one host answers for an address: the source takes its interfaces down before the dump,
// and the destination brings its own up after the commit. An interface that is down neither
// receives nor sends. Until then the destination has the addresses on interfaces that are down.
// CRIU can bind sockets to them, but needs a route to connect them (TCP_REPAIR): a default route
// through the loopback interface, the detour, on which nothing gets anywhere.
//
// All functions work in the network namespace of the calling thread, by rtnetlink. They block for a
// few milliseconds. Errors: kUnavailable if the kernel refuses, with its reason.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::network {

/// The interfaces that are up, except loopback ones, in the order of their numbers, with addresses
/// and with the routes of the main table that people or programs have made: the kernel makes the
/// others again.
Result<proto::Network> read_interfaces();

/// In numbers, without the length of the prefix.
std::string plain(const proto::NetworkAddress& address);

/// Whether an IPv6 address is of one link alone.
bool is_link_local(const std::string& address);

/// Success if it can be a part of a journal's record, at both sides; else kRefused.
Status check_size(const proto::Network& network);

/// What the destination is to have, in the order of `coming`: hardware addresses and addresses of
/// `coming`, on the interfaces of `here` that have addresses in the same subnets, with their names
/// and routes; or on one without addresses that has the name of the one that comes, with the routes
/// of that. kRefused if there is none for an interface that comes, or check_size() fails for any.
Result<proto::Network> merge(const proto::Network& coming, const proto::Network& here);

/// The kernel forgets routes, and addresses of IPv6, until bring_up(). Success if they are down.
Status take_down(const proto::Network& network);

/// At the destination: takes the interfaces down, replaces their addresses by those of `network`,
/// and makes the detour.
Status take_over(const proto::Network& network);

/// Removes the detour, and brings the interfaces up with their addresses and routes. May be
/// repeated.
Status bring_up(const proto::Network& network);

}  // namespace gcr::network

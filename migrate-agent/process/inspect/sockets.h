// Sockets, as the kernel tells of them, and the addresses that they are bound to: which of this
// host stand for those of the host that a process comes from, and which ports are free here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/result.h"

namespace gcr::process {

/// What becomes of a TCP connection whose other end does not move.
enum class OutsideTcp {
  kRefuse,  ///< it prevents the migration
  kClose,   ///< at the destination the program sees that it was reset
  kKeep,    ///< it moves as it is, with the job's address
};

/// Unix sockets of the caller's network namespace that have a peer: own inode -> the peer's.
Result<std::map<std::uint64_t, std::uint64_t>> unix_peers();

/// A TCP or UDP socket that is bound to a port. Addresses are in numbers, IPv4 or IPv6.
struct InternetSocket {
  std::string protocol;  ///< "tcp" or "udp"
  std::string address;
  std::uint16_t port = 0;
  std::string remote_address;
  std::uint16_t remote_port = 0;
  std::uint64_t inode = 0;    ///< 0: no process has it
  bool connection = false;    ///< TCP that is neither closed nor listening nor in TIME_WAIT
  bool passing = false;       ///< a connection that the kernel makes, or ends, for no process
  std::uint32_t waiting = 0;  ///< connections that a listener has not accepted

  /// What is left of a connection that has ended (TIME_WAIT).
  bool is_left_over() const { return protocol == "tcp" && !connection && remote_port != 0; }

  /// "10.0.0.1:80", "[::1]:80"
  std::string local_name() const;
  std::string remote_name() const;

  /// What the kernel tells connections apart by, and what those of the other end are.
  using Ends = std::tuple<std::string, std::uint16_t, std::string, std::uint16_t>;
  Ends ends() const { return {address, port, remote_address, remote_port}; }
  Ends other_ends() const { return {remote_address, remote_port, address, port}; }
};

/// Those of the network namespace of `pid`; 0: of the calling thread.
std::vector<InternetSocket> internet_sockets(pid_t pid = 0);

/// Lets go of what is left of a connection in the caller's network namespace. Kernels before 6.8
/// keep it for a minute all the same.
void forget(const InternetSocket& left_over);

/// An address in numbers, IPv4-mapped ones as IPv4: "::ffff:10.0.0.1" -> "10.0.0.1".
std::string unmapped(const std::string& address);

/// The first address of the calling thread's network namespace that is neither a loopback nor a
/// link-local address, IPv4 before IPv6; empty if there is none.
std::string first_address();

/// Knows this host's addresses as they were when it was made. Immutable: any thread.
class Addresses {
 public:
  /// `reached`: the address of this host at which the other agent has reached this one.
  explicit Addresses(const std::string& reached);

  /// The address here that stands for `address` of the other host. Wildcards, loopback and
  /// multicast addresses stay, and what this host has too; any other becomes `reached`. None if
  /// that is of another family, or if the address is link-local.
  std::optional<std::string> here(const std::string& address) const;

 private:
  std::string reached_;
  std::set<std::string> own_;
};

/// An address in the network's byte order, in numbers; IPv4-mapped ones as IPv4. `family` is
/// AF_INET or AF_INET6; empty for others.
std::string address_text(int family, const void* number);

/// "10.0.0.1:80", "[::1]:80"
std::string end_text(const std::string& address, std::uint16_t port);

/// Success if a socket can be bound so ("tcp" or "udp"), shared with no other. kRefused if not.
/// What is left of closed connections (TIME_WAIT) would keep others from listening at their port
/// for a minute if its sockets did not ask for SO_REUSEADDR: where nothing else is there, it goes.
Status check_free(const std::string& protocol, const std::string& address, std::uint16_t port);

}  // namespace gcr::process

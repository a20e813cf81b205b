// Sockets of the Internet in CRIU's images.
//
// A TCP connection moves if both of its ends do. CRIU takes over queues, sequence numbers and
// windows, each end for itself and in any order. Without a lock on the network, which would be a
// firewall's rule on the host, nothing may be sent before both ends exist: what was never sent is
// restored as sent and not confirmed, and a closed end is restored open, to be closed when both are
// there. An end whose other end does not move is connected, with what it had received, to a port of
// the loopback interface on which nothing listens: when CRIU lets go of it, the kernel resets it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/sockets/tcp_sockets.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "src/base/result.h"

namespace gcr::criu {

/// At the source, after a dump: takes the lock (see tcp_sockets.h) out of the images. kRefused if a
/// connection has one end outside and `outside` refuses that; kUnavailable if one was not locked in
/// time, and bytes were in flight from one end to the other, so that neither image has them.
Status settle_connections(const images::ReadImage& read, const images::WriteImage& write,
                          process::OutsideTcp outside);

/// What a restore makes, with addresses of this host.
struct AdaptedSockets {
  struct Bound {
    std::string protocol;  ///< "tcp" or "udp"
    TcpEnd end;
  };
  std::vector<Bound> bound;  ///< but no connections
  TcpConnections closing;    ///< ends of connections that were closed for writing
  TcpConnections resetting;  ///< ends that the kernel resets
};

/// The address here that stands for one of the source's, if there is one.
using FindAddress = std::function<std::optional<std::string>(const std::string& address)>;

/// Of the network that moves with a job.
struct KeptNetwork {
  std::set<std::string> addresses;
  std::map<std::string, std::string> interfaces;  ///< names here, by those at the source
};

/// At the destination, before the restore: writes addresses of this host into the images in
/// `directory`, which may come from another host. Afterwards each connection in them has both ends
/// in them, or begins at one of the addresses `kept`, or is reset. kDataLoss if the images are
/// damaged, kRefused if no address here stands for one of the source's.
Result<AdaptedSockets> adapt_sockets(const std::filesystem::path& directory,
                                     const FindAddress& find_address, const KeptNetwork& kept = {});

}  // namespace gcr::criu

// The RDMA transport: RC queue pairs ("lanes"), RDMA WRITE from registered memory straight into the
// receiver's regions, over the device that librdmacm finds for an address (InfiniBand, RoCE).
//
// The data and the token are not encrypted: the configuration of both ends must allow that, and
// digests verify the content. The device retransmits lost packets. If the device stops retrying on
// a lane, or the peer is silent for about `peer_timeout`, the channel breaks: RDMA lanes do not
// reconnect. messages.h has the protocol.
//
// Tested only over soft RoCE (rdma_rxe). Not tested, for lack of hardware: InfiniBand, several
// devices of different speed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/units.h"
#include "transport/address.h"
#include "transport/channel.h"

namespace gcr::transport {

/// The longest token, in bytes: it must fit the private data of a connection request.
inline constexpr std::size_t kMaxRdmaTokenBytes = 32;

/// Returns why no device of this host can be used, as a sentence for the operator; empty if one
/// can. Looks in the calling thread's network namespace, and opens each device briefly: takes
/// milliseconds.
std::string why_no_rdma();

struct RdmaOptions {
  unsigned lanes = 1;      ///< number of queue pairs, 1 to 64
  std::string token = {};  ///< each lane sends it; at most kMaxRdmaTokenBytes
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);  ///< for each lane
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// A write is cut into pieces of at most this many bytes, which is at most kPlaceBytes.
  std::uint64_t piece_bytes = kMiB;
  /// The most unacknowledged pieces of a lane, 1 to 256. Memory that was not added as a source is
  /// sent through a buffer of depth × piece_bytes per lane, allocated at the first use.
  unsigned depth = 16;
};

/// Connects all lanes, spread over the receiver's addresses in turn, and returns once the receiver
/// has accepted each. The addresses must belong to interfaces of RDMA devices; an address that
/// cannot be reached is skipped if another can. On failure nothing stays open; the error has the
/// receiver's reason: kPermissionDenied for a wrong token, kUnavailable if no receiver can be
/// reached, kUnsupported without a device. Blocks up to `connect_timeout` per lane and address.
///
/// The first write to a region requests its key, which is then cached: the number of a region must
/// not be reused for other memory. The receiver's device refuses a write with a revoked key, which
/// breaks the channel with kNotFound; for a region without memory of its own, the receiver refuses
/// the write. The destructor ends the transfer if the channel is intact; call flush() before.
Result<std::unique_ptr<Channel>> connect_rdma(const std::vector<Address>& addresses,
                                              const RdmaOptions& options);

struct RdmaReceiverOptions {
  std::vector<Address> addresses;  ///< at least one; port 0: any
  std::string token = {};          ///< each lane must send it; at most kMaxRdmaTokenBytes
  unsigned max_lanes = 64;         ///< the most lanes at one time
  OnLanded on_landed = {};         ///< may be empty; called for each piece of a write
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
};

/// The receiver's end over RDMA. It has one thread for connections and one per lane.
///
/// Each region is registered for remote writes with its own key, in a protection domain of this
/// receiver only: a key is valid for that region and this transfer's lanes, until it is removed.
/// Their pages are pinned: add_region fails with kResourceExhausted if the limit on locked memory
/// is too low. Nothing can be read remotely.
class RdmaReceiver : public Receiver {
 public:
  /// The addresses for connect_rdma() at the peer: those of the options, with the actual ports.
  virtual std::vector<Address> addresses() const = 0;
};

/// Listens on addresses of RDMA devices. Fails with kUnsupported if an address, or this host, has
/// no RDMA device. A sender with a wrong token is refused and logged; that does not affect
/// health(). Do not destroy the receiver, nor call remove_region(), from `on_landed`.
Result<std::unique_ptr<RdmaReceiver>> listen_rdma(RdmaReceiverOptions options);

}  // namespace gcr::transport

// The RDMA transport: RC queue pairs ("lanes"), RDMA WRITE from registered memory straight into the
// receiver's regions, over whatever device librdmacm finds behind an address (InfiniBand, RoCE).
//
// The data and the token are not encrypted: both ends' configuration must allow that, and digests
// verify the content. The device retransmits what the network loses. If the device gives a lane up,
// or its peer stays silent for about `peer_timeout`, the lane is lost, and the channel with it:
// lanes are not made again. messages.h has the protocol.
//
// Tested only over soft RoCE (rdma_rxe). Not tested, for lack of hardware: InfiniBand, several
// devices of different speed, and everything about dma-bufs except their refusal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/units.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/rdma/devices.h"

namespace gcr::transport {

/// The longest token, in bytes: what fits the private data of a connection request.
inline constexpr std::size_t kMaxRdmaTokenBytes = 32;

/// Memory of a device, such as VRAM, that its driver exports as a dma-buf.
struct DmaBuf {
  int fd = -1;                     ///< used during the call only; -1: it is ordinary memory
  std::uint64_t offset_bytes = 0;  ///< where it begins in the dma-buf
  /// The addresses that writes use for it, as many as there are bytes. Never dereferenced.
  std::span<std::byte> addresses;
};

struct RdmaOptions {
  unsigned lanes = 1;      ///< queue pairs to make, 1 to 64
  std::string token = {};  ///< shown to the receiver by each lane, to kMaxRdmaTokenBytes
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);  ///< for each lane
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// A write is cut into pieces of at most this many bytes, to kPlaceBytes.
  std::uint64_t piece_bytes = kMiB;
  /// Pieces of a lane that the receiver has not acknowledged, 1 to 256. Memory that was not added
  /// as a source is sent through a buffer of depth × piece_bytes per lane, made when it is first
  /// needed.
  unsigned depth = 16;
};

/// The sender's end.
class RdmaChannel : public Channel {
 public:
  /// As add_source, for memory of a device: writes may then name bytes within `source.addresses`.
  /// Fails with kUnsupported if RdmaDevice::dma_buf is false, and leaves the channel intact.
  virtual Status add_source_dmabuf(const DmaBuf& source) = 0;
};

/// Connects all lanes, spread over the receiver's addresses in turn, and returns once the receiver
/// has accepted each. The addresses are those of interfaces that belong to an RDMA device; one that
/// cannot be reached is left out while there is another. On failure nothing stays open; the error
/// has the receiver's reason: kPermissionDenied for a wrong token, kUnavailable if no receiver can
/// be reached, kUnsupported without a device. Blocks up to `connect_timeout` per lane and address.
///
/// The key of a region is requested at the first write to it, and kept: a region's number must not
/// be used again for other memory. A write with a key that was revoked is refused by the receiver's
/// device, and the channel is broken with kNotFound; for a region without memory of its own, the
/// receiver refuses it. The destructor ends the transfer if the
/// channel is intact; call flush first.
Result<std::unique_ptr<RdmaChannel>> connect_rdma(const std::vector<Address>& addresses,
                                                  const RdmaOptions& options);

struct RdmaReceiverOptions {
  std::vector<Address> addresses;  ///< at least one; port 0: any
  std::string token = {};          ///< what each lane must show, to kMaxRdmaTokenBytes
  unsigned max_lanes = 64;         ///< accepted lanes at one time
  OnLanded on_landed = {};         ///< may be empty; called for each piece of a write
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
};

/// A receiver's end. Its threads: one for connections, one per lane.
///
/// Regions are registered for remote writes, with a key of their own in a protection domain of this
/// receiver's own, so a key is good for this transfer's lanes and that region, until it is removed.
/// Their pages are pinned: add_region fails with kResourceExhausted if the limit on locked memory
/// is too low. Nothing can be read remotely.
class RdmaReceiver : public Receiver {
 public:
  /// The addresses of the options, with the ports that were chosen. For connect_rdma at the peer.
  virtual std::vector<Address> addresses() const = 0;

  /// As add_region, for memory of a device. Fails with kUnsupported where RdmaDevice::dma_buf is
  /// false; nothing is added then.
  virtual Status add_region_dmabuf(RegionId region, const DmaBuf& memory) = 0;
};

/// Listens on addresses of RDMA devices. Fails with kUnsupported if an address has no RDMA device,
/// or this machine none at all. A sender that shows a wrong token is refused and logged; it does
/// not affect health(). Do not destroy the receiver, nor call remove_region, from `on_landed`.
Result<std::unique_ptr<RdmaReceiver>> listen_rdma(RdmaReceiverOptions options);

}  // namespace gcr::transport

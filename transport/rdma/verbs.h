// Owning types for the objects of libibverbs and librdmacm; and the conversion of their errors.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "transport/rdma/rdma.h"

namespace gcr::transport::rdma {

template <auto destroy>
struct Destroyer {
  template <class Object>
  void operator()(Object* object) const {
    destroy(object);
  }
};

using ProtectionDomain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using MemoryRegion = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using EventChannel = std::unique_ptr<rdma_event_channel, Destroyer<rdma_destroy_event_channel>>;
/// A connection's or listener's identity; no queue pair is left in it when it is destroyed. All its
/// events must have been acknowledged by then.
using ConnectionId = std::unique_ptr<rdma_cm_id, Destroyer<rdma_destroy_id>>;
/// The queue pair of a ConnectionId, which it must not outlive.
using QueuePairOf = std::unique_ptr<rdma_cm_id, Destroyer<rdma_destroy_qp>>;
/// One event, acknowledged at the end. Its id must not be destroyed before.
using ConnectionEvent = std::unique_ptr<rdma_cm_event, Destroyer<rdma_ack_cm_event>>;

/// From errno, after a call of either library: "cannot <doing>: <why>, and what that means".
Error verbs_error(std::string_view doing);

/// Fails with kUnsupported and the reason if this machine has no RDMA at all; then the libraries,
/// which would write to standard error, are not called.
Status check_rdma_is_there();

/// An event channel whose descriptor does not block.
Result<EventChannel> make_event_channel();

/// `channel`'s next event; null if there is none yet.
Result<ConnectionEvent> next_event(rdma_event_channel* channel);

Result<ConnectionId> make_id(rdma_event_channel* channel);

Result<ProtectionDomain> make_protection_domain(ibv_context* device);

/// Registers `bytes` with IBV_ACCESS_… flags `access`; the addresses that keys speak of are those
/// of the bytes.
Result<MemoryRegion> register_memory(ibv_pd* domain, std::span<const std::byte> bytes, int access);

/// The protection domains of one end of a transfer: one for each device that it uses.
class Domains {
 public:
  /// That of the device, made if there is none yet.
  Result<ibv_pd*> add(ibv_context* device);

  /// That of the device; null if there is none.
  ibv_pd* find(const ibv_context* device) const;

  /// Registers memory with every device.
  Result<std::vector<MemoryRegion>> register_all(const DmaBuf& memory, int access) const;

 private:
  std::vector<ProtectionDomain> domains_;
};

/// The one of `domain`, of what register_all gave; null if there is none.
const ibv_mr* of_domain(const std::vector<MemoryRegion>& regions, const ibv_pd* domain);

/// Whether the device can register dma-bufs.
bool can_register_dmabuf(ibv_pd* domain);

/// Makes the device of `id` give up a peer that acknowledges nothing for about `peer_timeout`.
/// Before connect or accept.
Status set_peer_timeout(rdma_cm_id* id, std::chrono::milliseconds peer_timeout);

/// A queue pair's parameters at connect or accept. Nothing can be read remotely.
rdma_conn_param connection_parameters(std::span<const std::byte> private_data);

/// Why a work request failed: kUnavailable for a lost peer, kPermissionDenied for a refused place.
/// `doing` says whose request it was.
Error completion_error(const ibv_wc& completion, std::string_view peer);

}  // namespace gcr::transport::rdma

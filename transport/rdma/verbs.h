// Owning types for objects of libibverbs and librdmacm, and the conversion of their errors.
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
/// The id of a connection or listener. Its queue pair must be destroyed, and all its events
/// acknowledged, before it is.
using ConnectionId = std::unique_ptr<rdma_cm_id, Destroyer<rdma_destroy_id>>;
/// The queue pair of a ConnectionId, which must outlive it.
using QueuePairOf = std::unique_ptr<rdma_cm_id, Destroyer<rdma_destroy_qp>>;
/// One event, which the destructor acknowledges. Its id must outlive it.
using ConnectionEvent = std::unique_ptr<rdma_cm_event, Destroyer<rdma_ack_cm_event>>;

/// Converts errno after a call of either library to "cannot DOING: REASON", with a hint where
/// known.
Error verbs_error(std::string_view doing);

/// Fails with kUnsupported and the reason if this host has no RDMA at all. Call it before the
/// libraries, which would write to standard error in that case.
Status check_rdma_available();

/// Creates an event channel whose descriptor does not block.
Result<EventChannel> make_event_channel();

/// Returns the next event of `channel`; null if there is none yet.
Result<ConnectionEvent> next_event(rdma_event_channel* channel);

Result<ConnectionId> make_id(rdma_event_channel* channel);

Result<ProtectionDomain> make_protection_domain(ibv_context* device);

/// Registers `bytes` with the IBV_ACCESS_… flags `access`. Peers address the region by the virtual
/// addresses of the bytes.
Result<MemoryRegion> register_memory(ibv_pd* domain, std::span<const std::byte> bytes, int access);

/// The protection domains of one end of a transfer, one for each device.
class Domains {
 public:
  /// Returns the domain of the device; allocates it if there is none yet.
  Result<ibv_pd*> add(ibv_context* device);

  /// Returns the domain of the device; null if there is none.
  ibv_pd* find(const ibv_context* device) const;

  /// Registers memory with every device.
  Result<std::vector<MemoryRegion>> register_all(std::span<const std::byte> bytes,
                                                 int access) const;

 private:
  std::vector<ProtectionDomain> domains_;
};

/// Finds the registration with `domain` in the result of register_all(); null if there is none.
const ibv_mr* of_domain(const std::vector<MemoryRegion>& regions, const ibv_pd* domain);

/// Makes the device of `id` fail when the peer acknowledges nothing for about `peer_timeout`. Call
/// it before connect or accept.
Status set_peer_timeout(rdma_cm_id* id, std::chrono::milliseconds peer_timeout);

/// Returns a queue pair's parameters for connect or accept. They allow no remote reads.
rdma_conn_param connection_parameters(std::span<const std::byte> private_data);

/// Converts a failed work request: kUnavailable for a lost peer, kPermissionDenied for a refused
/// address. `peer` names the other end.
Error completion_error(const ibv_wc& completion, std::string_view peer);

}  // namespace gcr::transport::rdma

// Which transport a migration's data takes, and over how many connections. The destination decides,
// from what the operator wishes and what both hosts can do and may do. Pure functions.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

inline constexpr unsigned kMaxLanes = 32;

/// What the operator asks for.
struct DataWish {
  proto::Transport transport = proto::TRANSPORT_AUTO;
  bool plaintext = false;  ///< TCP without TLS
  unsigned lanes = 0;      ///< 0: by cores and link
};

struct DataPlan {
  proto::Transport transport = proto::TRANSPORT_TCP;  ///< TCP or RDMA
  bool encrypted = true;
  unsigned lanes = 1;  ///< 1 to kMaxLanes
  std::string reason;  ///< why not RDMA, if nobody ruled it out; else empty
};

/// RDMA where both hosts have it and the configuration of both lets data travel unencrypted, unless
/// TCP is wished for. kRefused, naming the host and what it lacks, where a wish cannot be granted:
/// RDMA by name, or TCP without TLS.
Result<DataPlan> plan_data(const DataWish& wish, const proto::DataOffer& source,
                           const proto::DataOffer& destination);

/// The plan after RDMA could not be connected. kRefused, with the reason, if RDMA was asked for by
/// name.
Result<DataPlan> plan_without_rdma(const DataWish& wish, const proto::DataOffer& source,
                                   const proto::DataOffer& destination, const std::string& reason);

/// For the source, before it obeys: whether what the destination has decided is something that
/// `wish` and the source's own offer allow. kProtocol.
Status check_decision(const DataWish& wish, const proto::DataOffer& source,
                      proto::Transport transport, bool encrypted);

/// Connections for a link that two hosts share. Each costs a thread at either end, and the threads
/// that prepare the data want cores too: half of the smaller host's cores, but not more than the
/// slower link can fill at what one core encrypts and sends; 2 at least, 16 at most.
unsigned default_lanes(const proto::DataOffer& source, const proto::DataOffer& destination);

}  // namespace gcr::agent

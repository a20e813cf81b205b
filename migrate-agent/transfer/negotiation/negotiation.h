// Which transport a migration's data takes, and over how many connections. The destination decides,
// from the operator's request and from what both hosts can do and may do.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::transfer {

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
  std::string reason;  ///< why not RDMA, if that was not ruled out; else empty
};

/// RDMA if both hosts have it and both configurations allow unencrypted data, unless TCP is
/// requested. kRefused, naming the host and what it lacks, if a request cannot be granted: RDMA by
/// name, or TCP without TLS.
Result<DataPlan> plan_data(const DataWish& wish, const proto::DataOffer& source,
                           const proto::DataOffer& destination);

/// The plan after an RDMA connection failed. kRefused, with the reason, if RDMA was asked for by
/// name.
Result<DataPlan> plan_without_rdma(const DataWish& wish, const proto::DataOffer& source,
                                   const proto::DataOffer& destination, const std::string& reason);

/// For the source: whether `wish` and the source's own offer allow what the destination has
/// decided. kProtocol.
Status check_decision(const DataWish& wish, const proto::DataOffer& source,
                      proto::Transport transport, bool encrypted);

/// Number of connections between two hosts. Each costs a thread at either end, and the threads that
/// prepare the data need cores too: half of the smaller host's cores, but not more than fill the
/// slower link at the rate at which one core encrypts and sends; at least 2, at most 16.
unsigned default_lanes(const proto::DataOffer& source, const proto::DataOffer& destination);

/// Looks at the host, in a millisecond or so. `unencrypted` is what the agent's configuration says.
/// Only interfaces of the caller's network namespace that sit on a bus count for the link: a
/// virtual one's speed says nothing.
proto::DataOffer data_offer(bool unencrypted);

}  // namespace gcr::transfer

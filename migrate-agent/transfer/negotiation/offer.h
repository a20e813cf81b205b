// What this host can do with data connections.
#pragma once

#include "proto/control.pb.h"

namespace gcr::transfer {

/// Looks at the host, in a millisecond or so. `unencrypted` is what the agent's configuration says.
/// Only interfaces of the caller's network namespace that sit on a bus count for the link: a
/// virtual one's speed says nothing.
proto::DataOffer data_offer(bool unencrypted);

}  // namespace gcr::transfer

// The network of a container whose addresses move with its job (migrate-agent/linux/network), when
// a migration is settled, by a worker or a recovery. All may be repeated. Success if no address
// moves.
#pragma once

#include <functional>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::finish {

/// Runs `work` in the network of the container. Success without running it if the container has
/// ended.
Status in_network(const journal::Began& began, const std::function<Status()>& work);

/// At the destination, before the restore: gives the container the addresses, without answering for
/// them.
Status receive_network(const journal::Began& began);

/// At the destination, once the commit is in its journal and before the copy runs: answers for the
/// addresses, tells the neighbours so, and makes the connections of the copy send what they have. A
/// container that has lost its interfaces keeps its job: what fails is logged.
Status enter_network(const journal::Began& began, const journal::Restored& copy);

/// Tells the neighbours again, some times within a second: switches may have missed the first time.
void announce_again(const journal::Began& began);

/// At the source, when a migration is undone, before its processes run: answers for the addresses
/// again. What fails is logged, for the same reason.
void reenter_network(const journal::Began& began);

}  // namespace gcr::finish

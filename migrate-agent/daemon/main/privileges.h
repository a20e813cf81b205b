// Drops privileges: each process of this program drops the capabilities that it does not need
// before it reads from any peer.
//
// The daemon parses 24 bytes of unauthenticated clients and has no capabilities. A worker parses
// messages of peers and must inspect other users' processes. The programs that a worker starts
// (CRIU, and through it the restored process) regain, as root's programs do, what the bounding set
// allows: a migrated process may hold any capability, and CRIU can only give it what it has itself.
// So the bounding set is not changed here; docs/threat-model.md says what a narrower one in the
// unit costs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/result.h"

namespace gcr::daemon {

/// The kinds of processes. Zero is never used.
enum class Part : std::uint8_t { kInvalid = 0, kDaemon, kWorker };

struct KeptCapability {
  unsigned number = 0;      ///< of <linux/capability.h>
  std::string_view name;    ///< "CAP_KILL"
  std::string_view reason;  ///< why it is needed
};

/// Returns the capabilities that a kind of process keeps; docs/threat-model.md repeats the table.
std::span<const KeptCapability> kept_capabilities(Part part);

/// Drops every other capability from the effective, permitted, inheritable and ambient sets of this
/// thread and of the threads that it starts, and disables core dumps of this process. Call it
/// before other threads exist. Capabilities that the process does not have are not an error.
Status drop_privileges(Part part);

}  // namespace gcr::daemon

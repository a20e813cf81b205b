// What this program's processes may do as root: each drops what it does not need before it talks to
// any peer.
//
// The daemon parses 24 bytes of unauthenticated clients and has no capabilities. A worker parses
// what peers send, and must inspect other users' processes. What a worker starts (CRIU, and through
// it the restored process) gets back, as root's programs do, what the bounding set leaves: a
// process that moves may hold any capability, and CRIU can only give it what it has itself. So the
// bounding set is left alone here; docs/threat-model.md says what a narrower one in the unit costs.
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
  std::string_view reason;  ///< what for
};

/// The table of what is kept; docs/threat-model.md repeats it.
std::span<const KeptCapability> kept_capabilities(Part part);

/// Drops every other capability from the effective, permitted, inheritable and ambient set of this
/// thread, and of those that it starts; and disables core dumps of this process. Call before other
/// threads exist. Capabilities that the process does not have are not an error.
Status drop_privileges(Part part);

}  // namespace gcr::daemon

// What processes and threads have set for themselves, and CRIU does not carry: by system calls made
// in the stopped threads (thread_calls.h), so that the kernel decides what a thread may set, and
// through /proc. docs/preflight.md has a table of all that Linux knows.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/criu/threads/held_processes.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

using Settings = google::protobuf::RepeatedPtrField<proto::Setting>;

/// Of one process.
struct Observed {
  Settings settings;
  std::vector<pid_t> in_landlock;  ///< threads in a domain of Landlock, by the caller's ids
  bool has_keyrings = false;       ///< of the process, or of a thread
};

/// Looks at all threads of `processes`, which are stopped afterwards, also after a failure; the
/// result is in their order. Zombies and threads of 32-bit code have nothing.
Result<std::vector<Observed>> read_settings(const std::vector<pid_t>& processes,
                                            const Standstill& standstill);

/// Gives processes what they had; what is usual, and is not here, too. Gives a sentence for each
/// that this host refuses. They are stopped afterwards, also after a failure. kUnsupported if one
/// that is needed is refused, kProtocol if there is something that read_settings() would not give.
Result<std::vector<std::string>> apply_settings(
    const std::vector<std::pair<pid_t, Settings>>& processes, const Standstill& standstill);

}  // namespace gcr::criu

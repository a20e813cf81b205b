// Fault points: named places in the agent's code at which a test injects a fault.
// tests/fault/points.h lists them.
//
// In shipped programs they do nothing (unarmed.cc). Tests run migrate-agent-faults, the same agent
// linked with fault.cc, where the environment variable GCR_FAULTS names a file. The file, once it
// exists, arms points, one a line:
//
//   POINT kill             SIGKILL to the process that reaches the point
//   POINT stop             SIGSTOP to it: it is silent until SIGCONT
//   POINT error [TEXT]     the step returns an Error
//   POINT run COMMAND      sh -c COMMAND, waited for; its parent is the process at the point
//   POINT corrupt          at points that corrupt bytes: armed() is true
//   POINT check            at points that check something: armed() is true
//
// The first process that reaches an armed point renames the whole file before it acts, so that no
// process, recovery least of all, meets it twice: the file becomes FILE.hit, with "hit PID" as the
// last line. Thread-safe; a point blocks its thread while it acts.
#pragma once

#include <string_view>

#include "src/base/result.h"

namespace gcr::fault {

/// Does nothing and succeeds unless `name` is armed. An armed point acts; `error` returns an Error
/// of kInternal that names the point.
Status point(std::string_view name);

/// Returns whether a point for corruption or a check is armed; true only once.
bool armed(std::string_view name);

}  // namespace gcr::fault

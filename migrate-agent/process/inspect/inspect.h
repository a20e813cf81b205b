// What a process is and holds, read from /proc: the facts that preflight compares, and what
// prevents a migration. Reads only; the process is not disturbed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "migrate-agent/process/inspect/together.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

/// What a process is in: it must be the same when it has stopped.
struct Confinement {
  std::map<std::string, std::string> namespaces;  ///< the kernel's links, by kind
  std::string root;                               ///< its root directory
  std::string apparmor_profile;
  std::string selinux_context;
};

struct Inspection {
  proto::ProcessFacts facts;  ///< all except door_tid, which the door knows
  Confinement confinement{};
  findings::Findings findings{findings::Side::kSource};
};

/// Deleted files up to this size move with the process; CRIU carries them in its images.
inline constexpr std::uint64_t kDeletedFileLimitBytes = 64u << 20;

/// Examines everything that is visible from outside, as far as it can; what it shares with the
/// others of `together`, it keeps. kNotFound if there is no such process, kPermissionDenied if it
/// may not be inspected. The findings are those of the catalogue's first part
/// (migrate-agent/base/findings/catalogue.cc) that need no second host. Descriptors and mappings of
/// NVIDIA devices, and the door, are expected and not reported.
///
/// The files among the facts are those of named_files(). Thread-safe.
///
/// `limits`: those of its control groups, where they are known. To find them out takes a program
/// that runs in the groups, which does not work while they are frozen.
Result<Inspection> inspect(pid_t pid, const Together& together,
                           OutsideTcp outside_tcp = OutsideTcp::kRefuse,
                           const proto::GroupLimits* limits = nullptr);

/// Looks again at a process that inspect() has found in `before`: that it is in the same, is not
/// traced, and has only kinds of descriptors that can be moved. What takes longer is not looked
/// at: other processes, files and memory. Errors as those of inspect(). Thread-safe.
Result<findings::Findings> inspect_again(pid_t pid, const Confinement& before);

/// Its words, with blanks between; empty if there is no such process or it has none.
std::string command_of(pid_t pid);

/// The PID that the process has in its innermost PID namespace (last of NSpid).
Result<pid_t> pid_in_namespace(pid_t pid);

}  // namespace gcr::process

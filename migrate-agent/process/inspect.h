// What a process is and holds, read from /proc: the facts that preflight compares, and the blockers
// that make a migration impossible. Reads only; the process is not disturbed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

struct Inspection {
  proto::ProcessFacts facts;             ///< all but door_tid, which the door knows
  std::vector<proto::Blocker> blockers;  ///< everything that stands in the way, all at once
  std::vector<std::string> warnings;
};

/// Deleted files up to this size move with the process; CRIU carries them in its images.
inline constexpr std::uint64_t kDeletedFileLimitBytes = 64u << 20;

/// kNotFound if there is no such process, kPermissionDenied if it may not be inspected. Blockers:
/// "not-ours" (a kernel thread, init, ourselves or an ancestor), "children", "namespaces" (net,
/// ipc, uts, user or cgroup namespaces other than the agent's), "terminal" (an open
/// descriptor), "outside-pipe", "outside-socket" (a pipe or Unix socket whose other end another
/// process holds), "tcp-established", "device" (e.g. /dev/gdrdrv), "io-uring", "deleted-file"
/// (larger than the limit, or deleted under one name and kept under another), "shared-memory"
/// (System V), "traced". Descriptors and mappings of NVIDIA devices, and the door, are expected and
/// not reported.
///
/// In the facts, open_files are regular files and directories (the working directory too) with
/// their names; a size of 0 says that only existence counts: directories and files open for
/// writing. Mapped files without a build-id carry a SHA-256 if they have at most 256 MiB.
/// Thread-safe.
Result<Inspection> inspect(pid_t pid);

/// At the destination: blockers "file-missing" and "file-differs" for every mapped or open file
/// that this host lacks or has in another version (build-id, else SHA-256, else size).
std::vector<proto::Blocker> compare_files(const proto::ProcessFacts& facts);

/// Start time in clock ticks since boot (field 22 of /proc/PID/stat): tells a reused PID apart.
Result<std::uint64_t> start_time(pid_t pid);

/// Its words, with blanks between; empty if there is no such process or it has none.
std::string command_of(pid_t pid);

/// The PID that the process has in its innermost PID namespace (last of NSpid).
Result<pid_t> pid_in_namespace(pid_t pid);

}  // namespace gcr::process

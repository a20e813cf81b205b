// The rights of threads: ids, groups, capabilities, no_new_privs and seccomp, as the kernel tells
// them in /proc/PID/task/TID/status. CRIU reads them inside the process, which could change
// them; images are accepted only if they agree with the kernel.
//
// Securebits are not in /proc: see criu/dumped_threads.h.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

/// A process with more threads than this is refused.
inline constexpr int kMaxThreads = 65536;

/// A thread and its rights; these have its id in its own PID namespace.
struct ThreadRights {
  pid_t pid = 0;
  pid_t tid = 0;
  proto::Credentials rights;
};

/// Those of every thread of `pid` and of the processes below it, except zombies. The threads must
/// be stopped, or some may be missed. kNotFound if the process is gone.
Result<std::vector<ThreadRights>> read_credentials(pid_t pid);

/// Shows `found` the rights of the threads of `pid` alone, the first thread's first, equal ones
/// once, until it says true. False if it never does. kNotFound if the process is gone.
Result<bool> find_rights(pid_t pid, const std::function<bool(const proto::Credentials&)>& found);

/// Success if they are equal; else kDataLoss with the thread, the first field that differs and both
/// values: "thread 12: uids are 0 0 0 0 in CRIU's image and 1000 1000 1000 1000 at the source".
Status compare_credentials(const proto::Credentials& left, const std::string& where_left,
                           const proto::Credentials& right, const std::string& where_right);

/// At the destination: checks that the threads below `init`, the init of a restored tree, are
/// exactly those of the source's agent, with the rights that it reported, plus what this process
/// passes on to everything that it starts: its bounding set, no_new_privs and seccomp filters.
/// The init of a container may have other children, of the engine's: with `root`, the threads of
/// the tree's root and below it count.
Status check_restored_credentials(
    pid_t init, const google::protobuf::RepeatedPtrField<proto::Credentials>& told, pid_t root = 0);

}  // namespace gcr::process

// The rights of threads: ids, groups, capabilities, no_new_privs and seccomp, as the kernel tells
// them in /proc/PID/task/TID/status. What CRIU's images say of them was read inside the process,
// which could change it meanwhile; images are believed only as far as they agree with the kernel.
//
// Securebits are not in /proc. criu/dumped_credentials.h has what becomes of them.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

/// More threads than this are no process.
inline constexpr int kMaxThreads = 65536;

/// Those of every thread of `pid` and of the processes below it, but for zombies. The threads are
/// stopped, or they may be missed. kNotFound if the process is gone.
Result<std::vector<proto::Credentials>> read_credentials(pid_t pid);

/// Success if they are equal; else kDataLoss with the thread, the first field that differs and both
/// values: "thread 12: uids are 0 0 0 0 in CRIU's image and 1000 1000 1000 1000 at the source".
Status compare_credentials(const proto::Credentials& left, const std::string& where_left,
                           const proto::Credentials& right, const std::string& where_right);

/// At the destination: the threads below `init`, the init of a restored tree, are those that the
/// source's agent told, none missing and none more, with the rights that it told. What this process
/// hands on to all that it starts is added: its bounding set, no_new_privs and seccomp filters.
Status check_restored_credentials(
    pid_t init, const google::protobuf::RepeatedPtrField<proto::Credentials>& told);

}  // namespace gcr::process

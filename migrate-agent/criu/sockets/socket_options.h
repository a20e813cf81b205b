// Options of sockets that CRIU does not carry: the choice of congestion control, timeouts, time
// stamps. Read from the sockets themselves while their processes are stopped, and set in the
// restored ones with the rights of any program, so that a job gets nothing that it could not set at
// this host itself. Options that the kernel does not tell, such as memberships of multicast groups
// and keys of TCP MD5, are lost.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

using SocketOptions = google::protobuf::RepeatedPtrField<proto::SocketOption>;

/// Reads the options that differ from those of a new socket of the same kind. The result is in the
/// order of the processes; a socket that several have belongs to the first.
Result<std::vector<SocketOptions>> read_socket_options(const std::vector<pid_t>& pids);

/// Sets them in the sockets of the processes, and gives a sentence for each value that this host
/// refuses. kProtocol if one is unknown.
Result<std::vector<std::string>> apply_socket_options(
    const std::vector<std::pair<pid_t, SocketOptions>>& processes);

}  // namespace gcr::criu

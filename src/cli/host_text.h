// What an agent reports about its host, for people and for scripts.
#pragma once

#include <string>

#include "proto/control.pb.h"

namespace gcr::cli {

/// As the driver's tools write it, from its 16 bytes.
std::string gpu_name(const std::string& uuid);

/// Tables: the GPUs, the processes, and the migrations if there are any.
std::string host_table(const proto::HostReply& host);

/// One JSON object on one line; docs/json.md describes it.
std::string host_json(const proto::HostReply& host);

}  // namespace gcr::cli

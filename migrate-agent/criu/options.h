// What every run of CRIU is asked for, and how CRIU's refusals become errors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "migrate-agent/criu/criu_rpc.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Deleted files up to this size travel inside the images ("ghost" files).
inline constexpr std::uint32_t kGhostFileLimitBytes = 64u << 20;

/// The command line of `action` ("dump", "pre-dump", "restore") as far as all of them share it: the
/// images directory, where the log goes, no cgroups, no network, and a timeout that no working CRIU
/// meets. CRIU's RPC cannot stream images: it ends CRIU when it is asked to.
std::vector<std::string> common_arguments(const std::string& action, const std::string& log_name);

/// The error for an answer without success: the first error line of CRIU's log and CRIU's message.
Error refusal(const wire::Response& response, const std::filesystem::path& images,
              const std::string& log_name);

/// Likewise for a run that ended with this wait status.
Error refusal(int wait_status, const std::filesystem::path& images, const std::string& log_name);

/// `error` with what CRIU's log says added to it, if anything.
Error explain(const Error& error, const std::filesystem::path& images, const std::string& log_name);

}  // namespace gcr::criu

// The options of every run of CRIU, and how CRIU's refusals become errors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Deleted files up to this size travel inside the images ("ghost" files).
inline constexpr std::uint32_t kGhostFileLimitBytes = 64u << 20;

/// The command line of `action` ("dump", "restore") with what all of them share: the
/// images directory, the log, no cgroups, connections without a lock on the network, and a timeout
/// that no working CRIU reaches. `with_plugin`: the log has what a plugin says, too. CRIU's RPC is
/// not used, because it cannot stream images: CRIU ends when asked to.
std::vector<std::string> common_arguments(const std::string& action, const std::string& log_name,
                                          bool with_plugin);

/// The error for an answer without success: CRIU's message and the first error line of its log.
Error refusal(const wire::Response& response, const std::filesystem::path& images,
              const std::string& log_name);

/// The error for a run that ended with this wait status: the same from its log.
Error refusal(int wait_status, const std::filesystem::path& images, const std::string& log_name);

/// `error` with what CRIU's log says added to it, if anything.
Error explain(const Error& error, const std::filesystem::path& images, const std::string& log_name);

}  // namespace gcr::criu

// What every request to CRIU asks for, and how CRIU's refusals become errors.
#pragma once

#include <filesystem>
#include <string>

#include "migrate-agent/criu/criu_rpc.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Deleted files up to this size travel inside the images ("ghost" files).
inline constexpr std::uint32_t kGhostFileLimitBytes = 64u << 20;

/// Options that dump and restore share: the images directory, where the log goes, no cgroups, tasks
/// left stopped, and a timeout that no working CRIU meets.
wire::Options common_options(const std::string& log_name);

/// The error for an answer without success: the first error line of CRIU's log and CRIU's message.
Error refusal(const wire::Response& response, const std::filesystem::path& images,
              const std::string& log_name);

/// `error` with what CRIU's log says added to it, if anything.
Error explain(const Error& error, const std::filesystem::path& images, const std::string& log_name);

}  // namespace gcr::criu

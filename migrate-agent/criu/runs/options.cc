#include "migrate-agent/criu/runs/options.h"

#include <sys/wait.h>

#include <cstring>
#include <fstream>

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

/// CRIU logs this and goes on if root has no CAP_SYS_RESOURCE.
constexpr std::string_view kHarmless = "Can't setup RLIMIT_NOFILE for self";
/// How long CRIU waits until all tasks have stopped, while some of them already have.
constexpr char kTimeoutSeconds[] = "60";

/// The first line with "Error (" in CRIU's log, without its time stamp; else the first line of what
/// CRIU wrote to standard error; empty if there is neither.
std::string first_error(const fs::path& images, const std::string& log_name) {
  std::ifstream log(images / log_name);
  for (std::string line; std::getline(log, line);) {
    const std::size_t at = line.find("Error (");
    if (at != std::string::npos && line.find(kHarmless) == std::string::npos) {
      return line.substr(at);
    }
  }
  std::ifstream errors(images / "criu.err");
  std::string line;
  std::getline(errors, line);
  return line;
}

}  // namespace

std::vector<std::string> common_arguments(const std::string& action, const std::string& log_name,
                                          bool with_plugin) {
  return {
      action,
      "--images-dir",
      ".",
      "--log-file",
      log_name,
      // Errors and warnings. A log of everything costs a tenth of a dump's time.
      with_plugin ? "-v3" : "-v2",
      // The session leader is mostly outside the tree; for a restored process it is the reaper. Of
      // no effect for a process that leads its session. Preflight refuses terminals.
      "--shell-job",
      "--file-locks",
      "--manage-cgroups=ignore",
      "--tcp-established",
      "--network-lock",
      "skip",
      "--ghost-limit",
      std::to_string(kGhostFileLimitBytes),
      "--timeout",
      kTimeoutSeconds,
  };
}

Error refusal(const wire::Response& response, const fs::path& images, const std::string& log_name) {
  std::string text = first_error(images, log_name);
  if (text.empty()) text = response.cr_errmsg();  // mostly the same, never more
  if (text.empty()) text = "no reason in its log";
  if (response.cr_errno() != 0) text += " [" + std::string(::strerror(response.cr_errno())) + "]";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return Error(Code::kUnsupported, "CRIU: " + text);
}

Error refusal(int wait_status, const fs::path& images, const std::string& log_name) {
  std::string text = first_error(images, log_name);
  if (text.empty()) text = "no reason in its log";
  if (WIFSIGNALED(wait_status)) {
    return Error(Code::kInternal,
                 "CRIU was ended by signal " + std::to_string(WTERMSIG(wait_status)) + ": " + text);
  }
  return Error(Code::kUnsupported, "CRIU: " + text);
}

Error explain(const Error& error, const fs::path& images, const std::string& log_name) {
  const std::string text = log_name.empty() ? "" : first_error(images, log_name);
  if (text.empty()) return error;
  return Error(error.code(), error.message() + ": " + text);
}

}  // namespace gcr::criu

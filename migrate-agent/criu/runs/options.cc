#include "migrate-agent/criu/runs/options.h"

#include <sys/wait.h>

#include <cstring>

#include "migrate-agent/criu/images/images.h"

namespace gcr::criu {
namespace {

/// How long CRIU waits until all tasks have stopped, while some of them already have.
constexpr char kTimeoutSeconds[] = "60";

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
      // The session leader is mostly outside the tree; for a restored process it is the reaper.
      // For a process that leads its own session this changes nothing; terminals are refused in
      // preflight.
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

Error refusal(const wire::Response& response, const std::filesystem::path& images,
              const std::string& log_name) {
  std::string text = images::first_error(images, log_name);
  if (text.empty()) text = response.cr_errmsg();  // mostly the same, never more
  if (text.empty()) text = "no reason in its log";
  if (response.cr_errno() != 0) text += " [" + std::string(::strerror(response.cr_errno())) + "]";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return Error(Code::kUnsupported, "CRIU: " + text);
}

Error refusal(int wait_status, const std::filesystem::path& images, const std::string& log_name) {
  std::string text = images::first_error(images, log_name);
  if (text.empty()) text = "no reason in its log";
  if (WIFSIGNALED(wait_status)) {
    return Error(Code::kInternal,
                 "CRIU was ended by signal " + std::to_string(WTERMSIG(wait_status)) + ": " + text);
  }
  return Error(Code::kUnsupported, "CRIU: " + text);
}

Error explain(const Error& error, const std::filesystem::path& images,
              const std::string& log_name) {
  const std::string text = log_name.empty() ? "" : images::first_error(images, log_name);
  if (text.empty()) return error;
  return Error(error.code(), error.message() + ": " + text);
}

}  // namespace gcr::criu

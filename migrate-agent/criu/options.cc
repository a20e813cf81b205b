#include "migrate-agent/criu/options.h"

#include <cstring>

#include "migrate-agent/criu/images.h"
#include "migrate-agent/criu/launch.h"

namespace gcr::criu {
namespace {

constexpr std::uint32_t kTimeoutSeconds = 600;
constexpr int kLogLevel = 4;

}  // namespace

wire::Options common_options(const std::string& log_name) {
  wire::Options options;
  options.set_images_dir_fd(launch::kImagesFd);
  options.set_leave_stopped(true);
  options.set_ext_unix_sk(false);
  options.set_tcp_established(false);
  options.set_link_remap(false);
  // A session leader outside the tree is the rule, also for what we restored: it is the reaper. For
  // a process that leads its own session this changes nothing; terminals are refused in preflight.
  options.set_shell_job(true);
  options.set_file_locks(true);
  options.set_log_level(kLogLevel);
  options.set_log_file(log_name);
  options.set_manage_cgroups_mode(wire::IGNORE);
  options.set_ghost_limit(kGhostFileLimitBytes);
  options.set_timeout(kTimeoutSeconds);
  options.set_network_lock(wire::SKIP);
  return options;
}

Error refusal(const wire::Response& response, const std::filesystem::path& images,
              const std::string& log_name) {
  std::string text = images::first_error(images, log_name);
  if (text.empty()) text = response.cr_errmsg();  // as a rule the same, and never more
  if (text.empty()) text = "no reason in its log";
  if (response.cr_errno() != 0) text += " [" + std::string(::strerror(response.cr_errno())) + "]";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return Error(Code::kUnsupported, "CRIU: " + text);
}

Error explain(const Error& error, const std::filesystem::path& images,
              const std::string& log_name) {
  const std::string text = log_name.empty() ? "" : images::first_error(images, log_name);
  if (text.empty()) return error;
  return Error(error.code(), error.message() + ": " + text);
}

}  // namespace gcr::criu

#include "container/report.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <syslog.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "container/bundle.h"
#include "src/base/unique_fd.h"

namespace gcr::container {
namespace {

/// As runc and crun write it.
std::string now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

/// Returns a JSON string.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append(const std::filesystem::path& path, const std::string& line) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644));
  if (file) (void)write_all(file.get(), line + "\n");
}

}  // namespace

void log_line(const std::filesystem::path& log, const std::string& message) {
  if (!log.empty()) {
    return append(log, fmt::format("{} gcr-runtime[{}] {}", now(), ::getpid(), message));
  }
  ::openlog("gcr-runtime", LOG_PID, LOG_DAEMON);
  ::syslog(LOG_INFO, "%s", message.c_str());
  ::closelog();
}

void report_failure(const CommandLine& command, const std::filesystem::path& log,
                    const std::string& message) {
  fmt::print(stderr, "gcr-runtime: {}\n", message);
  log_line(log, message);
  if (command.log.empty()) return;
  const std::string text = quoted("gcr-runtime: " + message);
  append(command.log, command.json_log
                          ? fmt::format(R"({{"level":"error","msg":{},"time":"{}"}})", text, now())
                          : fmt::format(R"(time="{}" level=error msg={})", now(), text));
}

}  // namespace gcr::container

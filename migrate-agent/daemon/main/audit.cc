#include "migrate-agent/daemon/main/audit.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/daemon/metrics/metrics.h"
#include "src/base/unique_fd.h"
#include "src/base/users.h"

namespace gcr::daemon {
namespace {

constexpr std::size_t kMaxValueBytes = 512;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const unsigned char c : text.substr(0, kMaxValueBytes)) {
    const bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
    out += plain ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
  }
  return out + '"';
}

bool has_ended(const registry::Outcome& outcome) {
  const proto::MigrateReport& report = outcome.report();
  return report.migrated() || !(report.committed() || report.recovering());
}

/// Appends the line in one write, so that lines of several workers do not mix.
Status append(const std::filesystem::path& path, std::string line) {
  line += '\n';
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Error::from_errno(errno, "cannot open the audit log " + path.string());
  const ssize_t written = ::write(file.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  return Error::from_errno(written < 0 ? errno : ENOSPC,
                           "cannot write to the audit log " + path.string());
}

/// Returns the number of processes from the report, or, for a job that was refused or recovered,
/// from the beginning of its journal.
std::string processes_of(const registry::Outcome& outcome) {
  const std::uint32_t reported = outcome.report().processes();
  const int began = outcome.migration().members_size();
  if (reported > 0) return std::to_string(reported);
  return began > 0 ? std::to_string(began) : "";
}

}  // namespace

std::string audit_line(const registry::Outcome& outcome, const std::string& host,
                       std::chrono::system_clock::time_point when) {
  const journal::Began& began = outcome.migration();
  const proto::MigrateReport& report = outcome.report();
  const bool is_source = began.role() == journal::Began::SOURCE;
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count() % 1000;
  const auto id = journal::parse_id(began.migration_id());
  const auto figure = [&](auto value, const char* format) {
    return outcome.recovered() ? std::string() : fmt::format(fmt::runtime(format), value);
  };
  const int pid = is_source ? journal::root_pid(began.members()) : report.destination_pid();
  const std::pair<const char*, std::string> fields[] = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(when)), milliseconds)},
      {"host", host},
      {"role", std::string(journal::to_string(began.role()))},
      {"migration", id ? id->to_string() : ""},
      {"ordered_by", began.ordered_by()},
      {"uid", std::to_string(began.uid())},
      {"user", describe_user(began.uid())},
      {"pid", pid > 0 ? std::to_string(pid) : ""},
      {"processes", processes_of(outcome)},
      {"command", began.command()},
      {"from", is_source ? host : began.peer()},
      {"to", is_source ? began.peer() : host},
      {"outcome", std::string(outcome_word(outcome))},
      {"recovered", outcome.recovered() ? "yes" : "no"},
      {"sent_bytes",
       is_source ? figure(report.sent_vram_bytes() + report.sent_image_bytes(), "{}") : ""},
      {"downtime_ms", is_source ? figure(report.downtime_ms(), "{:.1f}") : ""},
      {"reason", report.migrated() ? "" : report.message()}};
  std::string line;
  for (const auto& [key, value] : fields) {
    line += fmt::format("{}{}={}", line.empty() ? "" : " ", key, quoted(value));
  }
  return line;
}

void audit(const worker::Config& config, const registry::Outcome& outcome) {
  if (!has_ended(outcome)) return;
  const std::string line = audit_line(outcome, config.host, std::chrono::system_clock::now());
  if (config.audit_log.empty()) return spdlog::info("audit: {}", line);
  const Status written = append(config.audit_log, line);
  if (!written) spdlog::error("{}; the line is: {}", written.error().message(), line);
}

}  // namespace gcr::daemon

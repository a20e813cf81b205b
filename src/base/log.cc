#include "src/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace gcr {
namespace {

constexpr const char* kPlainPattern = "%Y-%m-%dT%H:%M:%S.%e %l %n[%P] ";
constexpr const char* kJournalPattern = "<%*>";

/// Writes the syslog(3) priority for a spdlog level, from trace to critical.
class PriorityFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& destination) override {
    constexpr std::string_view kPriorities = "776432";
    destination.push_back(kPriorities.at(message.level));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PriorityFlag>();
  }
};

/// Returns whether systemd has connected standard error to its journal (systemd.exec(5)).
bool logs_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return false;
  return stream == std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

/// `fields` ends with a space unless it is empty.
std::unique_ptr<spdlog::formatter> make_formatter(std::string_view fields) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PriorityFlag>('*');
  formatter->set_pattern((logs_to_journal() ? kJournalPattern : kPlainPattern) +
                         std::string(fields) + "%v");
  return formatter;
}

}  // namespace

void init_logging(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(program);
  logger->set_formatter(make_formatter({}));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void log_migration(const Uuid& migration) {
  spdlog::default_logger()->set_formatter(
      make_formatter("migration=" + migration.to_string() + " "));
}

}  // namespace gcr

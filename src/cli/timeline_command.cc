#include "src/cli/timeline_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "src/cli/exit_code.h"
#include "src/cli/json_line.h"
#include "src/cli/timeline.h"

namespace gcr::cli {
namespace {

using control::printable;

std::string all_of(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Result<std::string> read(const std::string& path) {
  if (path == "-") return all_of(std::cin);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, "cannot open it");
  return all_of(file);
}

Result<std::string> picture_of(const std::string& path) {
  GCR_ASSIGN(const std::string text, read(path));
  GCR_ASSIGN(const proto::MigrateReport report, report_of_json(text));
  return timeline_svg(report);
}

}  // namespace

int timeline_command(const TimelineOptions& options) {
  const auto picture = picture_of(options.report_path);
  if (!picture) {
    fmt::print(stderr, "gcr-migrate: {}: {}\n", printable(options.report_path),
               picture.error().message());
    return static_cast<int>(ExitCode::kUsage);
  }
  fmt::print("{}", *picture);
  return static_cast<int>(ExitCode::kMigrated);
}

}  // namespace gcr::cli

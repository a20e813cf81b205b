#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "src/cli/command.h"
#include "src/cli/timeline.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

constexpr const char* kTimelineDescription =
    "gcr-migrate timeline REPORT >timeline.svg: draw a migration, from the output of --json";

std::string all_of(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Result<std::string> read(const std::string& path) {
  if (path == "-") return all_of(std::cin);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, "cannot open the report");
  return all_of(file);
}

/// Parses the report in the last line of `text`, which --json of this or an earlier release wrote.
Result<proto::MigrateReport> report_of(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  const std::string line = text.substr(text.find_last_of('\n') + 1);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  proto::MigrateReport report;
  const auto parsed = google::protobuf::util::JsonStringToMessage(line, &report, options);
  if (parsed.ok() && line.find("\"migrated\":") != std::string::npos) return report;
  return Error(Code::kInvalidArgument, "the last line is not a report of gcr-migrate --json");
}

Result<std::string> picture_of(const std::string& path) {
  GCR_ASSIGN(std::string text, read(path));
  GCR_ASSIGN(const proto::MigrateReport report, report_of(std::move(text)));
  return timeline_svg(report);
}

}  // namespace

void add_timeline(CLI::App& app, Commands& commands) {
  const auto path = std::make_shared<std::string>();
  CLI::App* timeline = app.add_subcommand("timeline", kTimelineDescription);
  timeline
      ->add_option("REPORT", *path, "A file whose last line is the report; - for standard input")
      ->required();
  commands[timeline] = [path] {
    const auto picture = picture_of(*path);
    if (!picture) return fail(ExitCode::kUsage, *path + ": " + picture.error().message());
    fmt::print("{}", *picture);
    return ExitCode::kMigrated;
  };
}

}  // namespace gcr::cli

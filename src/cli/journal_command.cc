#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/cli/command.h"
#include "src/cli/json.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;
using journal::Record;

constexpr const char* kJournalDescription =
    "gcr-migrate journal PATH...: print agents' journals of migrations";

constexpr const char* kJournalFooter = R"(
A PATH is a journal, a directory of journals, or an agent's state_dir, on this machine: copies of
another machine's journals can be read too.

Exit status: 0, 1 if a journal is damaged, 2 if a PATH cannot be read. A last record that is
incomplete, because its writer died, is only mentioned: no agent has acted on it.)";

struct Printed {
  std::filesystem::path path;
  journal::Contents contents;

  std::int64_t began_ms() const {
    return contents.records.empty() ? 0 : contents.records.front().unix_ms();
  }
};

Status read_file(const std::filesystem::path& path, std::vector<Printed>& out) {
  GCR_ASSIGN(auto contents, journal::read(path));
  out.push_back({path, std::move(contents)});
  return {};
}

Status read_directory(const std::filesystem::path& path, std::vector<Printed>& out) {
  const auto journals = journal::directory_of(path);
  std::error_code ignored;
  const bool is_state_dir = std::filesystem::is_directory(journals, ignored);
  GCR_ASSIGN(const auto entries, journal::list_directory(is_state_dir ? journals : path));
  std::vector<Printed> found;
  for (const journal::Entry& entry : entries) {
    GCR_TRY(read_file(entry.path, found));
  }
  std::ranges::sort(found, {}, &Printed::began_ms);
  std::ranges::move(found, std::back_inserter(out));
  return {};
}

Result<std::vector<Printed>> read_all(const std::vector<std::string>& paths) {
  std::vector<Printed> result;
  for (const std::filesystem::path path : paths) {
    std::error_code ignored;
    const bool several = std::filesystem::is_directory(path, ignored);
    GCR_TRY(several ? read_directory(path, result) : read_file(path, result));
  }
  return result;
}

std::string time_of(const Record& record) {
  const std::chrono::milliseconds time(record.unix_ms());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds.count()),
                     (time - seconds).count());
}

/// Returns the name of the record's field: "keeper_started".
std::string kind_of(const Record& record) {
  const auto& reflection = *record.GetReflection();
  const auto* body = record.GetDescriptor()->oneof_decl(0);
  return reflection.GetOneofFieldDescriptor(record, body)->name();
}

std::string about(const journal::Began& began) {
  const bool leaves = began.role() == journal::Began::SOURCE;
  std::string text = fmt::format("{} {}", leaves ? "to" : "from", began.peer());
  if (!began.peer_name().empty()) text += fmt::format(" ({})", began.peer_name());
  for (const auto& member : began.members()) text += fmt::format(", process {}", member.pid());
  return text + fmt::format(", boot {}, command: {}", began.boot_id(), began.command());
}

std::string about(const journal::Restored& restored) {
  std::string text;
  for (const auto& member : restored.members()) text += fmt::format("process {}, ", member.pid());
  return text + fmt::format("init {}", restored.init().pid());
}

std::string about(const journal::Resuming& resuming) {
  std::string text;
  for (const journal::GpuMove& move : resuming.gpus()) {
    text += fmt::format("{}{} to {}", text.empty() ? "" : ", ", gpu_name(to_uuid(move.from())),
                        gpu_name(to_uuid(move.to())));
  }
  return text;
}

/// Returns the details of a record beyond its kind.
std::string about(const Record& record) {
  switch (record.body_case()) {
    case Record::kBegan:
      return about(record.began());
    case Record::kKeeperStarted:
      return fmt::format("keeper {}{}", record.keeper_started().keeper().pid(),
                         record.keeper_started().of_copy() ? ", of a copy in host memory" : "");
    case Record::kResuming:
      return about(record.resuming());
    case Record::kRestored:
      return about(record.restored());
    case Record::kAborted:
      return fmt::format("{}: {}", record.aborted().code(), record.aborted().message());
    case Record::kResolved:
      return fmt::format("{} here, says {}", record.resolved().run_here() ? "run" : "discard",
                         record.resolved().operator_name());
    case Record::kFinished:
      if (record.finished().pid() == 0) return record.finished().text();
      return fmt::format("{}, process {}", record.finished().text(), record.finished().pid());
    default:
      return "";
  }
}

void print_text(const Printed& file) {
  fmt::print("{}\n", printable(file.path.native()));
  for (const Record& record : file.contents.records) {
    const std::string text = printable(about(record));
    fmt::print("  {}  {}{}{}\n", time_of(record), kind_of(record), text.empty() ? "" : "  ", text);
  }
  if (file.contents.torn) fmt::print("  torn: an incomplete last record was omitted\n");
  if (file.contents.damage) {
    fmt::print("  damaged: {}\n", printable(file.contents.damage->message()));
  }
}

void set_journal(Struct& object, const Printed& file) {
  const journal::Contents& contents = file.contents;
  set(object, "path", file.path.native());
  set_bool(object, "torn", contents.torn);
  set_bool(object, "finished", !journal::unfinished(contents.records));
  set(object, "damage", contents.damage ? contents.damage->message() : "");
  if (const auto* began = journal::last(contents.records, Record::kBegan)) {
    set(object, "migration_id", journal::id_of(began->began()).to_string());
    set(object, "role", std::string(journal::to_string(began->began().role())));
  }
  make_list(object, "records");
  for (const Record& record : contents.records) add_object(object, "records") = to_struct(record);
}

void print_json(const std::vector<Printed>& files) {
  Struct object;
  make_list(object, "journals");
  for (const Printed& file : files) set_journal(add_object(object, "journals"), file);
  fmt::print("{}\n", to_json(object));
}

struct JournalOptions {
  std::vector<std::string> paths;  ///< at least one
  bool json = false;
};

ExitCode print_journals(const JournalOptions& options) {
  const auto files = read_all(options.paths);
  if (!files) return fail(ExitCode::kUsage, files.error().message());
  if (options.json) {
    print_json(*files);
  } else {
    std::ranges::for_each(*files, print_text);
  }
  const bool damaged = std::ranges::any_of(
      *files, [](const Printed& file) { return file.contents.damage.has_value(); });
  return damaged ? ExitCode::kFailed : ExitCode::kMigrated;
}

}  // namespace

void add_journal(CLI::App& app, Commands& commands) {
  const auto options = std::make_shared<JournalOptions>();
  CLI::App* journal = app.add_subcommand("journal", kJournalDescription);
  journal->footer(kJournalFooter);
  journal->add_option("PATH", options->paths, "Files or directories")->required();
  journal->add_flag("--json", options->json, "Print one JSON object and nothing else");
  commands[journal] = [options] { return print_journals(*options); };
}

}  // namespace gcr::cli

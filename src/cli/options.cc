#include "src/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "src/cli/ask_options.h"
#include "src/cli/exit_code.h"
#include "src/cli/migrate_options.h"

namespace gcr::cli {
namespace {

constexpr const char* kRunDescription =
    "gcr-migrate run -- COMMAND [ARGUMENT...]: start a command so that it can be migrated; sets "
    "LD_PRELOAD and nothing else";

constexpr const char* kRunFooter = R"(
The exit status is the command's; 125 if the preload library is missing, 126 or 127 if the command
cannot be started or found. GCR_PRELOAD names another libgcr-preload.so.)";

constexpr const char* kJournalDescription =
    "gcr-migrate journal PATH...: print the journals that agents keep of migrations";

constexpr const char* kJournalFooter = R"(
A PATH is a journal, a directory of journals, or an agent's state_dir, on this machine: copies of
another machine's journals can be read too.

Exit status: 0, 1 if a journal is damaged, 2 if a PATH cannot be read. A last record that is
incomplete, because its writer died, is only mentioned: nobody has acted on it.)";

constexpr const char* kTimelineDescription =
    "gcr-migrate timeline REPORT >timeline.svg: draw a migration, from the output of --json";

CLI::App* describe_timeline(CLI::App& app, TimelineOptions& options) {
  CLI::App* timeline = app.add_subcommand("timeline", kTimelineDescription);
  timeline
      ->add_option("REPORT", options.report_path,
                   "A file whose last line is the report; - for standard input")
      ->required();
  return timeline;
}

CLI::App* describe_run(CLI::App& app) {
  CLI::App* run = app.add_subcommand("run", kRunDescription);
  run->footer(kRunFooter);
  run->prefix_command();
  return run;
}

CLI::App* describe_journal(CLI::App& app, JournalOptions& options) {
  CLI::App* journal = app.add_subcommand("journal", kJournalDescription);
  journal->footer(kJournalFooter);
  journal->add_option("PATH", options.paths, "Files or directories")->required();
  journal->add_flag("--json", options.json, "Print one JSON object and nothing else");
  return journal;
}

/// The words that CLI11 reads, and those after the "--" of "run --", which are the command's alone.
struct Words {
  std::vector<std::string> ours;
  std::vector<std::string> command;
};

Words split_words(int argc, char** argv) {
  Words words{{argv + 1, argv + argc}, {}};
  if (words.ours.empty() || words.ours.front() != "run") return words;
  const auto mark = std::ranges::find(words.ours, "--");
  if (mark == words.ours.end()) return words;
  words.command.assign(mark + 1, words.ours.end());
  words.ours.erase(mark, words.ours.end());
  return words;
}

Leave complain(const std::string& what) {
  fmt::print(stderr, "gcr-migrate: {} (see --help)\n", what);
  return Leave{static_cast<int>(ExitCode::kUsage)};
}

Options run_options(const CLI::App& run, const Words& words) {
  RunOptions options{run.remaining()};
  options.command.insert(options.command.end(), words.command.begin(), words.command.end());
  if (options.command.empty()) return complain("run needs a command: gcr-migrate run -- COMMAND");
  return options;
}

template <class T>
Options checked(Result<T> options) {
  if (!options) return complain(options.error().message());
  return *std::move(options);
}

}  // namespace

Options parse_options(int argc, char** argv) {
  RawMigrate raw;
  RawAsk ask;
  JournalOptions journal_options;
  TimelineOptions timeline_options;
  CLI::App app;
  describe_migrate(app, raw);
  const CLI::App* preflight = describe_preflight(app, raw);
  const CLI::App* run = describe_run(app);
  const CLI::App* journal = describe_journal(app, journal_options);
  const CLI::App* timeline = describe_timeline(app, timeline_options);
  const AskCommands asks = describe_asks(app, ask);
  Words words = split_words(argc, argv);
  try {
    std::ranges::reverse(words.ours);  // as CLI11 wants them
    app.parse(std::move(words.ours));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Leave{app.exit(error)};
    return complain(error.what());
  }
  if (run->parsed()) return run_options(*run, words);
  if (journal->parsed()) return journal_options;
  if (timeline->parsed()) return timeline_options;
  if (const auto kind = kind_of(asks); kind != AskOptions::Kind::kInvalid) {
    return checked(check(ask, kind));
  }
  if (preflight->parsed()) {
    auto options = check(raw);
    if (!options) return checked(std::move(options));
    return PreflightOptions{*std::move(options)};
  }
  return checked(check(raw));
}

}  // namespace gcr::cli

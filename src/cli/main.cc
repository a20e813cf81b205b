// gcr-migrate: moves a running GPU process to another host, and starts processes that can be moved.
#include <algorithm>

#include "src/cli/command.h"

namespace {

using Words = std::vector<std::string>;

/// Takes the words after the "--" of "run --" away: they are the command's alone, and CLI11 does
/// not see them.
Words take_after_mark(Words& words) {
  if (words.empty() || words.front() != "run") return {};
  const auto mark = std::ranges::find(words, "--");
  if (mark == words.end()) return {};
  Words after(mark + 1, words.end());
  words.erase(mark, words.end());
  return after;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gcr::cli;
  Words words(argv + 1, argv + argc);
  CLI::App app;
  Commands commands;
  add_migrate(app, commands);
  add_checkpoint(app, commands);
  add_restore(app, commands);
  add_store(app, commands);
  add_run(app, commands, take_after_mark(words));
  add_slurm(app, commands);
  add_journal(app, commands);
  add_timeline(app, commands);
  add_suspensions(app, commands);
  add_asks(app, commands);
  try {
    std::ranges::reverse(words);  // as CLI11 wants them
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return static_cast<int>(wrong_usage(error.what()));
  }
  const auto given = app.get_subcommands();
  return static_cast<int>(commands.at(given.empty() ? &app : given.front())());
}

// gcr-migrate: moves a running GPU process to another host, and starts processes that can be moved.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/cli/command.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using Words = std::vector<std::string>;

// Commands whose words CLI11 parses only in part, or not at all.
constexpr const char* kRun = "run";
constexpr const char* kOfScripts[] = {"slurm", "container", "turns"};

/// Returns whether the option's value is the next word. An option means the same in every command
/// that has it.
bool takes_next_word(const CLI::App& app, const std::string& option) {
  std::vector<const CLI::App*> all = app.get_subcommands({});
  all.insert(all.begin(), &app);
  for (const CLI::App* one : all) {
    const CLI::Option* known = one->get_option_no_throw(option);
    if (known != nullptr) return known->get_items_expected_min() > 0;
  }
  return false;
}

/// Returns the options before the first word that is neither an option nor an option's value, and
/// the index of that word.
std::pair<Words, std::size_t> options_ahead(const CLI::App& app, const Words& words) {
  Words options;
  std::size_t at = 0;
  for (; at < words.size() && words[at].size() > 1 && words[at][0] == '-'; ++at) {
    if (words[at] == "--") break;
    options.push_back(words[at].substr(0, words[at].find('=')));
    if (options.back() == words[at] && takes_next_word(app, words[at])) ++at;
  }
  return {options, std::min(at, words.size())};
}

/// Moves the command's name before the options that precede it, which belong to the command.
/// Disables all other commands for CLI11, so that a host may have a command's name. Returns null if
/// the words name no command: then they order a migration. kInvalidArgument names an option that
/// the command does not have.
Result<CLI::App*> take_command(CLI::App& app, Words& words) {
  auto [options, at] = options_ahead(app, words);
  CLI::App* command = nullptr;
  if (at == words.size()) return command;
  for (CLI::App* one : app.get_subcommands({})) {
    one->disabled(one->get_name() != words[at]);
    if (!one->get_disabled()) command = one;
  }
  if (command == nullptr) return command;
  // The scripts check theirs.
  if (std::ranges::find(kOfScripts, command->get_name()) != std::end(kOfScripts)) options.clear();
  for (const std::string& option : options) {
    if (command->get_option_no_throw(option) != nullptr) continue;
    return Error(Code::kInvalidArgument, fmt::format("{} has no option {}", command->get_name(),
                                                     control::printable(option)));
  }
  const auto place = words.begin() + static_cast<Words::difference_type>(at);
  std::rotate(words.begin(), place, std::next(place));
  return command;
}

/// Removes and returns the words after "--": for "run" they belong to the started command, and
/// CLI11 must not parse them.
Words take_after_mark(Words& words) {
  const auto mark = std::ranges::find(words, "--");
  if (mark == words.end()) return {};
  Words after(mark + 1, words.end());
  words.erase(mark, words.end());
  return after;
}

}  // namespace
}  // namespace gcr::cli

// NOLINTNEXTLINE(bugprone-exception-escape): an unexpected exception must abort
int main(int argc, char** argv) {
  using namespace gcr::cli;
  Words words(argv + 1, argv + argc);
  Words after_mark;
  CLI::App app;
  Commands commands;
  add_migrate(app, commands);
  add_checkpoint(app, commands);
  add_restore(app, commands);
  add_store(app, commands);
  add_run(app, commands, after_mark);
  add_slurm(app, commands);
  add_container(app, commands);
  add_turns(app, commands);
  add_journal(app, commands);
  add_timeline(app, commands);
  add_suspensions(app, commands);
  add_asks(app, commands);
  const auto command = take_command(app, words);
  if (!command) return static_cast<int>(wrong_usage(command.error().message()));
  if (*command != nullptr && (*command)->get_name() == kRun) after_mark = take_after_mark(words);
  try {
    std::ranges::reverse(words);  // CLI11 expects reverse order
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return static_cast<int>(wrong_usage(error.what()));
  }
  return static_cast<int>(commands.at(*command != nullptr ? *command : &app)());
}

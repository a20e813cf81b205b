#include "container/command_line.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace gcr::container {
namespace {

// Options whose value may be a word of its own.
constexpr std::string_view kGlobalValues[] = {"log",  "log-format", "log-level",     "root",
                                              "criu", "rootless",   "cgroup-manager"};
constexpr std::string_view kCreateValues[] = {
    "bundle", "b", "config", "f", "pid-file", "console-socket", "preserve-fds"};
/// A value after an unknown global option is taken for no verb.
constexpr std::string_view kVerbs[] = {"checkpoint", "create", "delete", "events",  "exec",
                                       "features",   "help",   "init",   "kill",    "list",
                                       "mounts",     "pause",  "ps",     "restore", "resume",
                                       "run",        "spec",   "start",  "state",   "update"};

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Goes through the words: options with their values, and other words.
class Words {
 public:
  struct Word {
    std::size_t at;
    bool is_option;
    std::string_view name;                  // of the option; else the word
    std::optional<std::string_view> value;  // of the option
  };

  explicit Words(const std::vector<std::string>& words) : words_(words) {}

  /// Returns the next word. An option that is among `with_values` takes the following word if it
  /// has no value of its own.
  std::optional<Word> next(std::span<const std::string_view> with_values) {
    if (at_ == words_.size()) return std::nullopt;
    Word word{at_, false, words_[at_], std::nullopt};
    ++at_;
    if (ended_ || word.name.size() < 2 || word.name.front() != '-') return word;
    if (word.name == "--") {
      ended_ = true;
      return next(with_values);
    }
    word.is_option = true;
    word.name.remove_prefix(word.name.starts_with("--") ? 2 : 1);
    if (const auto equals = word.name.find('='); equals != std::string_view::npos) {
      word.value = word.name.substr(equals + 1);
      word.name = word.name.substr(0, equals);
    } else if (has(with_values, word.name) && at_ < words_.size()) {
      word.value = words_[at_++];
    }
    return word;
  }

 private:
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  bool ended_ = false;  // by "--"
};

void take_global(const Words::Word& option, CommandLine& line) {
  if (option.name == "log") line.log = option.value.value_or("");
  if (option.name == "log-format") line.json_log = option.value == "json";
}

void take_of_create(const Words::Word& option, CommandLine& line) {
  const std::string_view value = option.value.value_or("");
  if (option.name == "bundle" || option.name == "b") line.bundle = value;
  if (option.name == "config" || option.name == "f") line.config = value;
  if (option.name == "pid-file") line.pid_file = value;
  if (option.name == "detach" || option.name == "d") line.detach = option.value != "false";
}

}  // namespace

std::vector<std::string> CommandLine::deletion() const {
  std::vector<std::string> command(words.begin(),
                                   words.begin() + static_cast<std::ptrdiff_t>(verb_at));
  command.insert(command.end(), {"delete", "--force", container});
  return command;
}

void CommandLine::add_pid_file(const std::filesystem::path& path) {
  pid_file = path;
  words.insert(words.begin() + static_cast<std::ptrdiff_t>(verb_at) + 1,
               {"--pid-file", path.string()});
}

CommandLine parse_command_line(std::vector<std::string> words) {
  CommandLine line;
  line.words = std::move(words);
  line.verb_at = line.words.size();
  Words remaining(line.words);
  while (const auto word = remaining.next(kGlobalValues)) {
    if (word->is_option) {
      take_global(*word, line);
    } else if (has(kVerbs, word->name)) {
      line.verb_at = word->at;
      break;
    }
  }
  if (!line.creates()) return line;
  while (const auto word = remaining.next(kCreateValues)) {
    if (word->is_option) {
      take_of_create(*word, line);
    } else {
      line.container = word->name;
    }
  }
  return line;
}

}  // namespace gcr::container

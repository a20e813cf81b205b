// The command line of an OCI runtime, as runc and crun read it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gcr::container {

/// What gcr-runtime needs of the command line. Options that it does not know stay in `words`.
struct CommandLine {
  std::vector<std::string> words;  ///< without the program's name
  std::size_t verb_at = 0;         ///< index of the verb; words.size() if there is none
  std::filesystem::path bundle = ".";
  std::filesystem::path config = "config.json";  ///< in the bundle, unless it is absolute
  std::filesystem::path log;                     ///< the engine's; may be empty
  bool json_log = false;
  std::filesystem::path pid_file;  ///< may be empty
  std::string container;           ///< the id; may be empty
  bool detach = false;

  std::string verb() const { return verb_at < words.size() ? words[verb_at] : ""; }

  /// Returns whether this command makes a container.
  bool creates() const { return verb() == "create" || verb() == "run"; }

  std::filesystem::path spec_path() const { return bundle / config; }

  /// Returns the command that deletes the container by force, with the same global options.
  std::vector<std::string> deletion() const;

  /// Adds --pid-file.
  void add_pid_file(const std::filesystem::path& path);
};

/// Reads options in both spellings (`--bundle X`, `--bundle=X`, with one dash or two), before or
/// after the container's id. Never fails: the next runtime reports what is wrong.
CommandLine parse_command_line(std::vector<std::string> words);

}  // namespace gcr::container

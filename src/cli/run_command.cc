#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "src/base/executable.h"
#include "src/cli/command.h"

namespace gcr::cli {
namespace {

constexpr const char* kRunDescription =
    "gcr-migrate run -- COMMAND [ARGUMENT...]: start a command so that it can be migrated; sets "
    "LD_PRELOAD and nothing else";

constexpr const char* kRunFooter = R"(
The exit status is the command's; 125 if the preload library is missing, 126 or 127 if the command
cannot be started or found. GCR_PRELOAD names another libgcr-preload.so.)";

constexpr const char* kLibrary = "libgcr-preload.so";
constexpr const char* kSeparators = ": ";  // of LD_PRELOAD

Result<std::filesystem::path> find_library() {
  const char* named = std::getenv("GCR_PRELOAD");
  std::error_code ignored;
  if (named != nullptr && *named != '\0') {
    const auto path = std::filesystem::absolute(named, ignored);
    if (std::filesystem::exists(path, ignored)) return path;
    return Error(Code::kNotFound, fmt::format("GCR_PRELOAD names {}, which is not there", named));
  }
  GCR_ASSIGN(const auto program, executable_path());
  const auto prefix = program.parent_path().parent_path();
  for (const auto& folder : {prefix / "lib", prefix / "lib" / "gcr-migrate"}) {
    if (std::filesystem::exists(folder / kLibrary, ignored)) return folder / kLibrary;
  }
  return Error(
      Code::kNotFound,
      fmt::format("{} is neither in {} nor in its folder gcr-migrate; install it there, or "
                  "set GCR_PRELOAD to its path",
                  kLibrary, (prefix / "lib").string()));
}

/// `existing` with `library` first, unless it is in there already.
std::string preload_list(const std::string& library, const char* existing) {
  if (existing == nullptr || *existing == '\0') return library;
  const std::string list = existing;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find_first_of(kSeparators, at), list.size());
    if (list.compare(at, end - at, library) == 0) return list;
    at = end + 1;
  }
  return library + ":" + list;
}

/// Becomes the command; returns only if that fails.
ExitCode start(const std::vector<std::string>& command) {
  if (command.empty()) return wrong_usage("run needs a command: gcr-migrate run -- COMMAND");
  const auto library = find_library();
  if (!library) return fail(ExitCode::kRunOwnFailure, library.error().message());
  if (library->string().find_first_of(kSeparators) != std::string::npos) {
    return fail(
        ExitCode::kRunOwnFailure,
        fmt::format("LD_PRELOAD cannot hold the path {}: it has a space or a colon; copy the "
                    "library elsewhere and set GCR_PRELOAD",
                    library->string()));
  }
  const std::string list = preload_list(library->string(), std::getenv("LD_PRELOAD"));
  if (::setenv("LD_PRELOAD", list.c_str(), 1) != 0) {
    return fail(ExitCode::kRunOwnFailure,
                fmt::format("cannot set LD_PRELOAD: {}", std::strerror(errno)));
  }
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  const int error = errno;
  return fail(error == ENOENT ? ExitCode::kRunNotFound : ExitCode::kRunNotExecutable,
              fmt::format("cannot start {}: {}", command.front(), std::strerror(error)));
}

}  // namespace

void add_run(CLI::App& app, Commands& commands, std::vector<std::string> after_mark) {
  CLI::App* run = app.add_subcommand("run", kRunDescription);
  run->footer(kRunFooter);
  run->prefix_command();
  commands[run] = [run, after_mark = std::move(after_mark)] {
    std::vector<std::string> command = run->remaining();
    command.insert(command.end(), after_mark.begin(), after_mark.end());
    return start(command);
  };
}

}  // namespace gcr::cli

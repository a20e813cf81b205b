// How CRIU is started on this host, as agent.toml says.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gcr::criu {

struct Command {
  /// The program and the arguments before its own, e.g. a private dynamic loader.
  std::vector<std::string> argv;
  /// The init program of the namespaces that CRIU is started in, where those are new: for checks,
  /// and for restores, where it stays with the process and ends when the last task in there has
  /// ended. Dumps go without.
  std::filesystem::path reaper;
};

}  // namespace gcr::criu

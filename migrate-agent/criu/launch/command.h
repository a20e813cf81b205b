// How CRIU is started on this host, from agent.toml.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gcr::criu {

struct Command {
  /// The program and the arguments before its own, e.g. a private dynamic loader.
  std::vector<std::string> argv;
  /// The init program of new namespaces in which CRIU is started: for checks, and for restores,
  /// where it stays with the process and ends when the last task there has ended. Not for dumps.
  std::filesystem::path reaper;
  /// Where plugins are, which CRIU loads only for jobs that need one. Empty: plugins_of().
  std::filesystem::path plugins{};
  /// "NAME=VALUE" for these jobs. Without a limit amdgpu_plugin.so takes as much memory as the
  /// largest buffer.
  std::vector<std::string> plugin_environment = {"KFD_MAX_BUFFER_SIZE=256M"};
};

}  // namespace gcr::criu

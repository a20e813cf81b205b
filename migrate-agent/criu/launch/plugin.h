// CRIU's plugins, which move what only they can: of an AMD GPU all state that is not in tracked
// VRAM. A plugin is code that runs as root, within CRIU; the agent gives CRIU one or none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// The file of the plugin for AMD's GPUs.
inline constexpr std::string_view kAmdGpuPlugin = "amdgpu_plugin.so";

/// The file of the plugin that a dump of this process needs: kAmdGpuPlugin if it has /dev/kfd open,
/// or HIP's library, which opens that. Empty: none.
std::string plugin_for(pid_t process);

/// A plugin's file that can be loaded into CRIU. Move-only.
class Plugin {
 public:
  /// `criu_version` is a Facts::version (criu.h). kNotFound if there is no such file, kRefused if
  /// others than root may write to it, kUnsupported if it is no plugin, or one for another CRIU.
  static Result<Plugin> open(const std::filesystem::path& file, std::uint32_t criu_version);

  int fd() const { return file_.get(); }
  /// "amdgpu_plugin": how its messages begin.
  const std::string& name() const { return name_; }

 private:
  Plugin(UniqueFd file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}
  UniqueFd file_;
  std::string name_;
};

/// What a plugin calls the GPUs of the source, and those that it has put in their places.
using PluginMap = std::map<std::uint32_t, std::uint32_t>;

/// The map that each restored task got, from CRIU's log at level 3 or higher: the last one that the
/// plugin `name` has printed for it.
std::vector<PluginMap> plugin_maps(const std::filesystem::path& log, const std::string& name);

/// The first error that the plugin `name` has written to CRIU's log; empty if there is none. CRIU
/// may succeed nevertheless.
std::string plugin_error(const std::filesystem::path& log, const std::string& name);

/// Success if every task got what `planned` says. kInternal with the first difference. A task needs
/// not have all GPUs, but if any are planned, one task has got a map.
Status check_plugin_maps(std::span<const PluginMap> maps, const PluginMap& planned);

}  // namespace gcr::criu

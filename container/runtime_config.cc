#include "container/runtime_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "src/base/executable.h"

namespace gcr::container {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRuntimes[] = {"/usr/bin/runc", "/usr/sbin/runc", "/usr/bin/crun"};

/// The file that is parsed, for errors.
struct Place {
  const std::string& file;

  Error wrong(const toml::node& node, std::string_view key, std::string_view what) const {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}:{}: {} {}", file, node.source().begin.line, key, what));
  }
};

Status read_path(const Place& place, std::string_view key, const toml::node& node,
                 bool may_be_empty, fs::path& path) {
  const auto text = node.value_exact<std::string>();
  const bool is_path = text && (text->starts_with('/') || (may_be_empty && text->empty()));
  if (!is_path) {
    return place.wrong(
        node, key,
        may_be_empty ? "must be an absolute path, or empty" : "must be an absolute path");
  }
  path = *text;
  return {};
}

Status read_key(const Place& place, std::string_view key, const toml::node& node,
                RuntimeConfig& config) {
  if (key == "runtime") return read_path(place, key, node, true, config.runtime);
  if (key == "init") return read_path(place, key, node, true, config.init);
  if (key == "library") return read_path(place, key, node, true, config.library);
  if (key == "log") return read_path(place, key, node, true, config.log);
  if (key == "state") return read_path(place, key, node, false, config.state);
  if (key != "allow_userfaultfd") {
    return place.wrong(
        node, key, "is not known; known are allow_userfaultfd, init, library, log, runtime, state");
  }
  const auto flag = node.value_exact<bool>();
  if (!flag) return place.wrong(node, key, "must be true or false");
  config.allow_userfaultfd = *flag;
  return {};
}

/// Returns `configured`, or the first of `places` that exists. `key` configures it.
Result<fs::path> find(const fs::path& configured, std::string_view key,
                      const std::vector<fs::path>& places) {
  const std::vector<fs::path> all = configured.empty() ? places : std::vector{configured};
  std::error_code ignored;
  for (const fs::path& place : all) {
    if (fs::is_regular_file(place, ignored)) return place;
  }
  std::vector<std::string> names;
  for (const fs::path& place : all) names.push_back(place.string());
  return Error(Code::kNotFound, fmt::format("cannot find {}: not a file: {}; set `{}` in {}", key,
                                            fmt::join(names, ", "), key, kDefaultRuntimeConfig));
}

}  // namespace

Result<RuntimeConfig> parse_runtime_config(const std::string& text, const std::string& name) {
  RuntimeConfig config;
  const Place place{name};
  try {
    const toml::table root = toml::parse(text, name);
    for (const auto& [key, node] : root) GCR_TRY(read_key(place, key.str(), node, config));
  } catch (const toml::parse_error& error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  return config;
}

Result<RuntimeConfig> load_runtime_config(const fs::path& path) {
  std::ifstream file(path);
  if (!file && errno == ENOENT) return RuntimeConfig();
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error::from_errno(errno, "cannot read the configuration " + path.string());
  return parse_runtime_config(text.str(), path.string());
}

Result<fs::path> next_runtime(const RuntimeConfig& config) {
  GCR_ASSIGN(fs::path runtime,
             find(config.runtime, "runtime", {std::begin(kRuntimes), std::end(kRuntimes)}));
  GCR_ASSIGN(const fs::path own, executable_path());
  std::error_code ignored;
  if (!fs::equivalent(runtime, own, ignored)) return runtime;
  return Error(Code::kInvalidArgument, fmt::format("the next runtime, {}, is gcr-runtime itself: "
                                                   "set `runtime` in {}",
                                                   runtime.string(), kDefaultRuntimeConfig));
}

Result<fs::path> find_init(const RuntimeConfig& config) {
  GCR_ASSIGN(const fs::path own, executable_path());
  const fs::path folder = own.parent_path();
  return find(config.init, "init",
              {folder / "gcr-init", folder.parent_path() / "libexec/gcr-migrate/gcr-init"});
}

Result<fs::path> find_library(const RuntimeConfig& config) {
  GCR_ASSIGN(const fs::path own, executable_path());
  const fs::path prefix = own.parent_path().parent_path();
  return find(config.library, "library",
              {prefix / "lib/gcr-migrate/libgcr-preload.so", prefix / "lib/libgcr-preload.so"});
}

}  // namespace gcr::container

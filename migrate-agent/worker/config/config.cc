#include "migrate-agent/worker/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "migrate-agent/criu/launch/launch.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "src/base/executable.h"
#include "src/base/units.h"
#include "src/base/users.h"
#include "src/control/wire.h"

namespace gcr::worker {
namespace {

/// Parses a whole number of MiB or GiB, below 2^54 bytes.
std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::size_t kMostDigits = 7;
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kMostDigits) return std::nullopt;
  const std::uint64_t number = std::stoull(std::string(text.substr(0, digits)));
  const std::string_view unit = text.substr(digits);
  if (unit == " MiB") return number * kMiB;
  if (unit == " GiB") return number * kGiB;
  return std::nullopt;
}

/// One table of the file, read key by key. Keeps the first error, which finish() returns.
class Table {
 public:
  Table(const toml::table& table, std::string file, std::string prefix = {})
      : table_(table), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const toml::node* find(std::string_view key) {
    known_.insert(key);
    return table_.get(key);
  }

  /// Returns the value of a key if it is present and of this type; of another type, fails with
  /// `must`.
  template <class Value>
  std::optional<Value> value(std::string_view key, std::string_view must) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto found = node->value_exact<Value>();
    if (!found) fail(key, must);
    return found;
  }

  /// Returns the text of a key; empty if it is missing.
  std::string text(std::string_view key) {
    return value<std::string>(key, "must be a string").value_or("");
  }

  template <class Path>
  void text(std::string_view key, Path& target) {
    const auto found = value<std::string>(key, "must be a string");
    if (found && found->empty()) return fail(key, "must not be empty");
    if (found) target = *found;
  }

  void required_text(std::string_view key, std::string& target) {
    text(key, target);
    if (target.empty()) fail(table_, key, "is missing");
  }

  /// Reads a path; an empty text selects the default.
  template <class Path>
  void optional_text(std::string_view key, Path& target) {
    if (std::string found = text(key); !found.empty()) target = std::move(found);
  }

  /// Reads an absolute path; an empty text selects none.
  void optional_path(std::string_view key, std::filesystem::path& target) {
    const auto found = value<std::string>(key, "must be a string");
    if (found && !found->empty() && !found->starts_with('/')) {
      return fail(key, "must be an absolute path, or empty");
    }
    if (found) target = *found;
  }

  void absolute_path(std::string_view key, std::filesystem::path& target) {
    const auto found = value<std::string>(key, "must be a string");
    if (found && !found->starts_with('/')) return fail(key, "must be an absolute path");
    if (found) target = *found;
  }

  void flag(std::string_view key, bool& target) {
    if (const auto found = value<bool>(key, "must be true or false")) target = *found;
  }

  void number(std::string_view key, unsigned least, unsigned most, unsigned& target) {
    const std::string must = fmt::format("must be a number from {} to {}", least, most);
    const auto found = value<std::int64_t>(key, must);
    if (!found) return;
    if (*found < least || *found > most) return fail(key, must);
    target = static_cast<unsigned>(*found);
  }

  /// Reads a size such as "512 MiB" or "4 GiB".
  void size(std::string_view key, std::uint64_t least, std::uint64_t most, std::uint64_t& target) {
    const std::string must = fmt::format("must be a size from \"{}\" to \"{}\"",
                                         format_bytes(least), format_bytes(most));
    const auto found = value<std::string>(key, must);
    if (!found) return;
    const auto bytes = parse_size(*found);
    if (!bytes || *bytes < least || *bytes > most) return fail(key, must);
    target = *bytes;
  }

  void strings(std::string_view key, std::vector<std::string>& target) {
    constexpr std::string_view kMust = "must be an array of strings";
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr) return fail(key, kMust);
    target.clear();
    for (const toml::node& element : *array) {
      const auto found = element.value_exact<std::string>();
      if (!found) return fail(element, key, kMust);
      target.push_back(*found);
    }
  }

  /// Reads environment variables, "NAME=VALUE".
  void variables(std::string_view key, std::vector<std::string>& target) {
    strings(key, target);
    const bool all = std::ranges::all_of(target, [](const std::string& variable) {
      return variable.find('=') != std::string::npos && !variable.starts_with('=');
    });
    if (!all) return fail(key, "must have the form \"NAME=VALUE\"");
    if (target.size() > criu::launch::kMostVariables) fail(key, "has too many variables");
  }

  using Read = void (*)(Table&, Config&);

  /// Reads the table [key], if there is one. Returns its first error.
  Status section(std::string_view key, Read read, Config& config) {
    const toml::node* node = find(key);
    if (node == nullptr) return {};
    if (node->is_table()) return inner(*node->as_table(), key, read, config);
    fail(key, fmt::format("must be a table: [{}]", key));
    return {};
  }

  /// Reads all tables [[key]]. Returns their first error.
  Status sections(std::string_view key, Read read, Config& config) {
    const toml::node* node = find(key);
    if (node == nullptr) return {};
    if (!node->is_array_of_tables()) {
      fail(key, fmt::format("must be tables: [[{}]]", key));
      return {};
    }
    for (const toml::node& element : *node->as_array()) {
      GCR_TRY(inner(*element.as_table(), key, read, config));
    }
    return {};
  }

  /// Records an error of a key that is present.
  void fail(std::string_view key, std::string_view what) { fail(*table_.get(key), key, what); }

  void fail(const toml::node& node, std::string_view key, std::string_view what) {
    if (!status_) return;
    status_ =
        Error(Code::kInvalidArgument,
              fmt::format("{}:{}: {}{} {}", file_, node.source().begin.line, prefix_, key, what));
  }

  /// Returns the first error, including unknown keys.
  Status finish() {
    for (const auto& [key, node] : table_) {
      if (known_.contains(key.str())) continue;
      fail(node, key.str(), fmt::format("is not known; known are {}", fmt::join(known_, ", ")));
    }
    return status_;
  }

 private:
  Status inner(const toml::table& table, std::string_view key, Read read, Config& config) const {
    Table part(table, file_, fmt::format("{}.", key));
    read(part, config);
    return part.finish();
  }

  const toml::table& table_;
  std::string file_;
  std::string prefix_;
  std::set<std::string_view> known_;
  Status status_;
};

/// Parses like Endpoint::parse; port 0 selects any free port.
Result<control::Endpoint> parse_listen(const std::string& text) {
  constexpr std::string_view kAnyPort = ":0";
  const bool bare_v6 = !text.starts_with('[') && std::ranges::count(text, ':') > 1;
  if (bare_v6 || !text.ends_with(kAnyPort)) return control::Endpoint::parse(text);
  GCR_ASSIGN(control::Endpoint endpoint, control::Endpoint::parse(text + "1"));
  endpoint.port = 0;
  return endpoint;
}

template <class Target>
void read_listen(Table& table, std::string_view key, const std::string& text, Target& target) {
  if (text.empty()) return;
  auto endpoint = parse_listen(text);
  if (!endpoint) return table.fail(key, endpoint.error().message());
  target = std::move(*endpoint);
}

void read_advertise(Table& table, Config& config) {
  const std::string text = table.text("advertise");
  if (text.empty()) return;
  const auto endpoint = control::Endpoint::parse(text);
  if (!endpoint) return table.fail("advertise", endpoint.error().message());
  config.advertise = endpoint->to_string();
}

void read_hugepages(Table& table, Config& config) {
  using enum hostmem::HugepagePolicy;
  static const std::map<std::string, hostmem::HugepagePolicy> kPolicies = {
      {"auto", kAuto}, {"require", kRequire}, {"never", kNever}};
  std::string text = "auto";
  table.text("hugepages", text);
  const auto policy = kPolicies.find(text);
  if (policy == kPolicies.end()) {
    return table.fail("hugepages", "must be \"auto\", \"require\" or \"never\"");
  }
  config.hugepages = policy->second;
}

void read_log_level(Table& table, Config& config) {
  static constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};
  table.text("log_level", config.log_level);
  if (std::ranges::find(kLevels, config.log_level) == kLevels.end()) {
    table.fail("log_level", "must be \"debug\", \"info\", \"warning\" or \"error\"");
  }
}

void read_gpus(Table& table, Config& config) {
  std::vector<std::string> texts;
  table.strings("gpus", texts);
  for (const std::string& text : texts) {
    const auto uuid = parse_gpu(text);
    if (!uuid) {
      return table.fail(
          "gpus",
          fmt::format(
              "has \"{}\", which is not a GPU's UUID; `nvidia-smi -L` and `rocminfo` list them",
              control::printable(text)));
    }
    config.gpus.push_back(*uuid);
  }
}

void read_tls(Table& table, Config& config) {
  table.text("authority", config.tls.authority);
  table.text("certificate", config.tls.certificate);
  table.text("key", config.tls.key);
  std::filesystem::path revoked;
  table.optional_path("revoked", revoked);
  config.tls.revoked = revoked;
}

void read_operator(Table& table, Config& config) {
  OperatorRule& rule = config.operators.emplace_back();
  table.required_text("name", rule.name);
  table.strings("users", rule.users);
}

void read_peer(Table& table, Config& config) {
  table.required_text("name", config.peers.emplace_back());
}

/// Returns the directory of the programs that are installed with an agent in `folder`, unless they
/// are in `folder` itself (a build tree, a bundle).
std::filesystem::path installed_in(const std::filesystem::path& folder) {
  return folder.parent_path() / "libexec" / "gcr-migrate";
}

std::filesystem::path default_reaper() {
  const auto program = executable_path();
  if (!program) return "gcr-reaper";
  const auto folder = program->parent_path();
  std::error_code ignored;
  if (std::filesystem::exists(folder / "gcr-reaper", ignored)) return folder / "gcr-reaper";
  return installed_in(folder) / "gcr-reaper";
}

/// Returns the CRIU that was installed with the agent, else the one in PATH.
std::vector<std::string> default_criu() {
  const auto program = executable_path();
  if (!program) return {"criu"};
  const auto installed = installed_in(program->parent_path()) / "criu" / "criu";
  std::error_code ignored;
  if (std::filesystem::exists(installed, ignored)) return {installed.string()};
  return {"criu"};
}

void read_criu(Table& table, Config& config) {
  table.strings("command", config.criu.argv);
  if (config.criu.argv.empty()) config.criu.argv = default_criu();
  table.optional_text("reaper", config.criu.reaper);
  table.optional_text("plugins", config.criu.plugins);
  table.variables("plugin_environment", config.criu.plugin_environment);
}

void read_slurm(Table& table, Config& config) {
  slurm::Settings& slurm = config.slurm;
  slurm.node = table.text("node");
  if (slurm.node.find('/') != std::string::npos) table.fail("node", "must not contain \"/\"");
  table.absolute_path("spool", slurm.spool);
  table.absolute_path("library", slurm.library);
  table.absolute_path("folder", slurm.folder);
}

Status read_root(const toml::table& node, const std::string& name, Config& config) {
  Table root(node, name);
  std::string listen;
  root.text("listen", listen);
  read_listen(root, "listen", listen, config.listen);
  read_advertise(root, config);
  root.optional_text("host", config.host);
  root.number("lanes", 0, transfer::kMaxLanes, config.lanes);
  root.strings("data_addresses", config.data_addresses);
  root.flag("unencrypted_data", config.unencrypted_data);
  root.flag("allow_unfrozen", config.allow_unfrozen);
  read_hugepages(root, config);
  root.size("landing_window", transfer::kMaxLanes * kChunkBytes, 1024 * kGiB,
            config.landing_window_bytes);
  read_gpus(root, config);
  read_log_level(root, config);
  root.number("max_startups", 2, 65536, config.max_startups);
  root.number("startup_timeout_ms", 10, 600'000, config.startup_timeout_ms);
  root.number("peer_silence_ms", 500, 3'600'000, config.peer_silence_ms);
  root.number("max_connections", 1, 65536, config.max_connections);
  root.number("max_migrations", 1, 1024, config.max_migrations);
  root.number("max_migrations_per_user", 0, 1024, config.max_migrations_per_user);
  root.optional_path("local_socket", config.local_socket);
  read_listen(root, "metrics_listen", root.text("metrics_listen"), config.metrics_listen);
  root.optional_path("audit_log", config.audit_log);
  root.text("sysfs", config.sysfs);
  root.text("state_dir", config.state_dir);
  root.text("runtime_dir", config.runtime_dir);
  GCR_TRY(root.section("tls", read_tls, config));
  GCR_TRY(root.section("criu", read_criu, config));
  GCR_TRY(root.section("slurm", read_slurm, config));
  GCR_TRY(root.sections("operators", read_operator, config));
  GCR_TRY(root.sections("peers", read_peer, config));
  return root.finish();
}

}  // namespace

Result<Config> parse_config(const std::string& text, const std::string& name) {
  Config config;
  config.host = host_name();
  config.criu.argv = default_criu();
  try {
    const toml::table root = toml::parse(text, name);
    GCR_TRY(read_root(root, name, config));
  } catch (const toml::parse_error& error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  if (config.criu.reaper.empty()) config.criu.reaper = default_reaper();
  config.slurm.adopter = config.criu.reaper.parent_path() / "gcr-slurm-adopt";
  return config;
}

Result<Config> load_config(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return Error::from_errno(errno, "cannot read the configuration " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return Error(Code::kIo, "cannot read the configuration " + path.string());
  GCR_ASSIGN(Config config, parse_config(text.str(), path.string()));
  config.source = path;
  return config;
}

}  // namespace gcr::worker

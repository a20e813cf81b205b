#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "migrate-agent/worker/config/certificates.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/cli/agents.h"
#include "src/cli/command.h"
#include "src/cli/json.h"
#include "src/cli/progress_text.h"
#include "store/upkeep.h"

namespace gcr::cli {
namespace {

using control::printable;
using store::Listed;

constexpr int kStoreSchema = 1;

constexpr const char* kStoreFooter = R"(
DIR is a directory on the machine where this command runs, and is accessed with the rights of the
user who runs it; as root, with those of its owner. No agent is contacted. A checkpoint is trusted
only if an agent of the authority has signed it.
)";

/// The command line of the store's commands.
struct StoreLine {
  std::string directory;
  std::string name;                                 ///< of verify; empty: all
  unsigned keep = 0;                                ///< for prune; 0: all
  std::vector<std::string> removed;                 ///< for prune: checkpoints by name
  std::string config = worker::kDefaultConfigPath;  ///< for commands that print signers
  bool json = false;
  control::TlsFiles tls;
};

/// Whether this host's agent restores a checkpoint of a signer.
struct Acceptance {
  const char* answer;    ///< "yes", "no" or "unknown"
  std::string reason{};  ///< unless it is "yes"
};

/// The signers that this host's agent accepts, as far as this command can read its configuration.
class AcceptedSigners {
 public:
  explicit AcceptedSigners(const std::string& config) : config_(worker::load_config(config)) {
    if (config_) self_ = store::own_name(config_->tls);
  }

  Acceptance answer_for(const std::string& signer) const {
    if (!config_) return {"unknown", config_.error().message()};
    const Status accepted =
        worker::check_peer(config_->peers, self_ ? *self_ : "", signer, "checkpoints");
    if (accepted) return {"yes"};
    if (!self_) return {"unknown", self_.error().message()};
    return {"no", accepted.error().message()};
  }

 private:
  Result<worker::Config> config_;
  Result<std::string> self_ = std::string();
};

struct Checked {
  Listed listed;
  store::Verified verified;
};

Result<store::Directory> open_directory(const std::string& path) {
  store::Owner owner{::geteuid(), ::getegid()};
  struct stat info {};
  if (owner.uid == 0 && ::stat(path.c_str(), &info) == 0) owner = {info.st_uid, info.st_gid};
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return Error::from_errno(error.value(), "cannot find " + path);
  return store::Directory::open(absolute.lexically_normal(), owner);
}

std::string command_of(const proto::Manifest& manifest) {
  const auto& members = manifest.job().members();
  return members.empty() ? "" : members[0].command();
}

/// Returns a row of the table; a problem takes the place of the figures.
std::string row_of(const Listed& one, const AcceptedSigners& signers) {
  if (one.problem) {
    return fmt::format("{:<24}  unusable: {}\n", printable(one.name),
                       printable(one.problem->message()));
  }
  const proto::Manifest& manifest = one.manifest;
  const std::string row = fmt::format(
      "{:<24}  {:<20}  {:>9}  {:>10}  {:>10}  {:>10}  {:<12}  {:<8}  {}\n", printable(one.name),
      time_text(manifest.taken_unix_ms()), manifest.job().members_size(),
      format_bytes(manifest.vram_bytes()), format_bytes(manifest.memory_bytes()),
      format_bytes(manifest.new_bytes()), printable(manifest.agent()),
      signers.answer_for(manifest.agent()).answer, printable(command_of(manifest)));
  if (!one.restore) return row;
  return fmt::format("{}    restore {} has locked it\n", row, one.restore->to_string());
}

std::string table_of(const std::vector<Listed>& checkpoints, const AcceptedSigners& signers) {
  if (checkpoints.empty()) return "no checkpoints\n";
  std::string text =
      fmt::format("{:<24}  {:<20}  {:>9}  {:>10}  {:>10}  {:>10}  {:<12}  {:<8}  {}\n", "name",
                  "taken", "processes", "vram", "memory", "new", "agent", "accepted", "command");
  for (const Listed& one : checkpoints) text += row_of(one, signers);
  return text;
}

/// Returns the bytes of VRAM by GPU of the host where the checkpoint was taken.
std::map<Uuid, std::uint64_t> vram_of(const proto::Manifest& manifest) {
  std::map<Uuid, std::uint64_t> bytes;
  for (const proto::Buffer& buffer : manifest.buffers()) {
    std::uint64_t& sum = bytes[to_uuid(buffer.gpu_uuid())];
    if (!buffer.has_host_node()) sum += buffer.size_bytes();
  }
  return bytes;
}

/// Sets the signer, and whether this host's agent accepts it; empty if there is a problem.
void set_signer(Struct& object, const Listed& one, const AcceptedSigners& signers) {
  const Acceptance acceptance =
      one.problem ? Acceptance{""} : signers.answer_for(one.manifest.agent());
  set(object, "agent", one.manifest.agent());
  set(object, "accepted", acceptance.answer);
  set(object, "accepted_reason", acceptance.reason);
}

void set_listed(Struct& object, const Listed& one, const AcceptedSigners& signers) {
  const proto::Manifest& manifest = one.manifest;
  set(object, "name", one.name);
  set_signer(object, one, signers);
  set(object, "checkpoint_id", to_uuid(manifest.checkpoint_id()).to_string());
  set(object, "taken_unix_ms", static_cast<double>(manifest.taken_unix_ms()));
  set(object, "command", command_of(manifest));
  set(object, "processes", manifest.job().members_size());
  set_fields(object, manifest, {"stopped", "vram_bytes", "memory_bytes", "new_bytes"});
  set(object, "problem", one.problem ? one.problem->message() : "");
  set(object, "restore_id", one.restore ? one.restore->to_string() : "");
  make_list(object, "gpus");
  for (const auto& [uuid, bytes] : vram_of(manifest)) {
    Struct& gpu = add_object(object, "gpus");
    set(gpu, "uuid", uuid.to_string());
    set(gpu, "vram_bytes", static_cast<double>(bytes));
    for (const proto::Gpu& known : manifest.job().host().gpus()) {
      if (to_uuid(known.uuid()) == uuid) set_fields(gpu, known, {"name", "total_bytes"});
    }
  }
}

/// Returns {"schema": 1, "checkpoints": […]}; `add_entry` fills each entry.
template <class Range, class Add>
std::string json_of(const Range& range, Add add_entry) {
  Struct object;
  set(object, "schema", kStoreSchema);
  make_list(object, "checkpoints");
  for (const auto& one : range) add_entry(add_object(object, "checkpoints"), one);
  return to_json(object) + "\n";
}

ExitCode list_checkpoints(const StoreLine& line, const store::Directory& directory) {
  const auto listed = store::list(directory, line.tls);
  if (!listed) return fail(ExitCode::kUsage, listed.error().message());
  const AcceptedSigners signers(line.config);
  const auto add = [&](Struct& object, const Listed& one) { set_listed(object, one, signers); };
  fmt::print("{}", line.json ? json_of(*listed, add) : table_of(*listed, signers));
  const bool good = std::ranges::none_of(*listed, [](const Listed& one) { return !!one.problem; });
  return good ? ExitCode::kMigrated : ExitCode::kFailed;
}

/// Returns the named checkpoint, or all. kNotFound if there is none of that name.
Result<std::vector<Listed>> chosen(const StoreLine& line, const store::Directory& directory) {
  if (line.name.empty()) return store::list(directory, line.tls);
  if (!store::is_name(line.name)) {
    return Error(Code::kInvalidArgument, "\"" + line.name + "\" is not a checkpoint's name");
  }
  auto manifest = store::find_manifest(directory, line.name, line.tls);
  if (manifest) return std::vector{Listed{.name = line.name, .manifest = *std::move(manifest)}};
  if (manifest.error().code() == Code::kNotFound) return manifest.error();
  return std::vector{Listed{.name = line.name, .problem = manifest.error()}};
}

Checked check_one(const store::Directory& directory, Listed listed) {
  Checked checked{std::move(listed), {}};
  if (checked.listed.problem) return checked;
  const auto verified = store::verify(directory, checked.listed.manifest);
  if (verified) {
    checked.verified = *verified;
  } else {
    checked.listed.problem = verified.error();
  }
  return checked;
}

void set_checked(Struct& object, const Checked& checked, const AcceptedSigners& signers) {
  set(object, "name", checked.listed.name);
  set_signer(object, checked.listed, signers);
  set(object, "contents", static_cast<double>(checked.verified.contents));
  set(object, "bytes", static_cast<double>(checked.verified.bytes));
  set(object, "problem", checked.listed.problem ? checked.listed.problem->message() : "");
}

std::string text_of(const Acceptance& acceptance) {
  const std::string_view answer = acceptance.answer;
  if (answer == "yes") return "accepted here";
  return fmt::format("{}: {}", answer == "no" ? "not accepted here" : "accepted here or not",
                     printable(acceptance.reason));
}

std::string line_of(const Checked& checked, const AcceptedSigners& signers) {
  const std::string name = printable(checked.listed.name);
  if (checked.listed.problem) {
    return fmt::format("{}: {}\n", name, printable(checked.listed.problem->message()));
  }
  const std::string& signer = checked.listed.manifest.agent();
  return fmt::format("{}: good: {} contents, {}; signed by \"{}\", {}\n", name,
                     checked.verified.contents, format_bytes(checked.verified.bytes),
                     printable(signer), text_of(signers.answer_for(signer)));
}

ExitCode verify_checkpoints(const StoreLine& line, const store::Directory& directory) {
  auto listed = chosen(line, directory);
  if (!listed) return fail(ExitCode::kUsage, listed.error().message());
  std::erase_if(*listed, [](const Listed& one) { return one.restore.has_value(); });
  const AcceptedSigners signers(line.config);
  std::vector<Checked> all;
  for (Listed& one : *listed) {
    all.push_back(check_one(directory, std::move(one)));
    if (!line.json) fmt::print("{}", line_of(all.back(), signers));
  }
  const auto add = [&](Struct& object, const Checked& one) { set_checked(object, one, signers); };
  if (line.json) fmt::print("{}", json_of(all, add));
  const bool good =
      std::ranges::none_of(all, [](const Checked& one) { return !!one.listed.problem; });
  return good ? ExitCode::kMigrated : ExitCode::kFailed;
}

ExitCode prune_failed(const Error& error) {
  const Code code = error.code();
  return fail(code == Code::kRefused    ? ExitCode::kRefused
              : code == Code::kNotFound ? ExitCode::kUsage
                                        : ExitCode::kFailed,
              error.message());
}

void print_removed(const std::vector<std::string>& names) {
  for (const std::string& name : names) fmt::print("removed {}\n", printable(name));
}

ExitCode prune_checkpoints(const StoreLine& line, const store::Directory& directory) {
  if (!line.removed.empty()) {
    const Status removed = store::remove(directory, line.removed);
    if (!removed) return prune_failed(removed.error());
    if (!line.json) print_removed(line.removed);
  }
  auto pruned = store::prune(directory, line.keep, line.tls);
  if (!pruned) return prune_failed(pruned.error());
  if (line.json) {
    Struct object;
    set(object, "schema", kStoreSchema);
    make_list(object, "removed");
    for (const auto* names : {&line.removed, &std::as_const(pruned->removed)}) {
      for (const std::string& name : *names) set(add_object(object, "removed"), "name", name);
    }
    set(object, "freed_bytes", static_cast<double>(pruned->freed_bytes));
    fmt::print("{}\n", to_json(object));
  } else {
    print_removed(pruned->removed);
    fmt::print("freed {}\n", format_bytes(pruned->freed_bytes));
  }
  return ExitCode::kMigrated;
}

using StoreCommand = ExitCode (*)(const StoreLine& line, const store::Directory& directory);

ExitCode run_in_directory(StoreLine& line, StoreCommand command) {
  auto authority = find_authority(line.tls);
  if (!authority) return fail(ExitCode::kUsage, authority.error().message());
  line.tls = *std::move(authority);
  const auto directory = open_directory(line.directory);
  if (!directory) return fail(ExitCode::kUsage, directory.error().message());
  return command(line, *directory);
}

CLI::App* add_store_command(CLI::App& app, Commands& commands, const char* name,
                            const std::shared_ptr<StoreLine>& line, StoreCommand command,
                            const char* description, const char* exit_status) {
  CLI::App* added = app.add_subcommand(name, description);
  added->footer(std::string(kStoreFooter) + exit_status);
  added->add_option("DIR", line->directory, "The directory of checkpoints")->required();
  added->add_flag("--json", line->json, "Print one JSON object and nothing else");
  describe_authority(*added, line->tls);
  commands[added] = [line, command] { return run_in_directory(*line, command); };
  return added;
}

/// Adds --config.
CLI::App* describe_config(CLI::App* command, StoreLine& line) {
  command
      ->add_option("--config", line.config,
                   "The configuration of this host's agent, whose [[peers]] say which signers it "
                   "accepts (default: /etc/gcr-migrate/agent.toml)")
      ->option_text("FILE");
  return command;
}

}  // namespace

void add_store(CLI::App& app, Commands& commands) {
  const auto listed = std::make_shared<StoreLine>();
  describe_config(
      add_store_command(app, commands, "checkpoints", listed, list_checkpoints,
                        "gcr-migrate checkpoints DIR: the checkpoints in a directory, oldest first",
                        "Exit status: 0, 1 if one of them is unusable, 2 if DIR cannot be read."),
      *listed);
  const auto verified = std::make_shared<StoreLine>();
  describe_config(
      add_store_command(
          app, commands, "verify", verified, verify_checkpoints,
          "gcr-migrate verify DIR [NAME]: read a checkpoint, or all, and verify every "
          "byte",
          "Exit status: 0 if all data is as stored, 1 if something is wrong, 2 if DIR or "
          "NAME cannot be read."),
      *verified)
      ->add_option("NAME", verified->name, "Which checkpoint (default: all)");
  const auto pruned = std::make_shared<StoreLine>();
  CLI::App* prune = add_store_command(
      app, commands, "prune", pruned, prune_checkpoints,
      "gcr-migrate prune DIR: remove unneeded data and old checkpoints",
      "Exit status: 0, 1 if it failed, 2 if DIR cannot be read or has no checkpoint NAME, 3 if "
      "DIR is being written to, or if a checkpoint there is unusable: its data is not known.");
  prune
      ->add_option("--keep", pruned->keep,
                   "Keep only the newest N checkpoints of each job (default: all)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000));
  prune
      ->add_option("--remove", pruned->removed,
                   "Remove this checkpoint, also if it is unusable; may be given again")
      ->option_text("NAME")
      ->allow_extra_args(false);
}

}  // namespace gcr::cli

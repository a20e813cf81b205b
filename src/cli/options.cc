#include "src/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "src/cli/exit_code.h"

namespace gcr::cli {
namespace {

constexpr const char* kSystemFolder = "/etc/gcr-migrate";

constexpr const char* kFooter = R"(
Exit status:
  0  migrated
  1  failed; the process runs on at SRC
  2  wrong usage, or a file that it names cannot be used
  3  refused before anything was touched
  4  an agent cannot be reached; nothing was touched
  5  not authorised; nothing was touched
  6  contact was lost under way, or DST has not confirmed: the outcome is not known here; the
     agents settle it, and `gcr-migrate status SRC ID` tells
  7  cancelled; the process runs on at SRC
cancel, status, list and resolve: 0 if it was done, else 2 to 5.

Ctrl-C (or SIGTERM) gives the migration up as long as it is not committed, and waits for the report;
a second one leaves at once. Where the connection to SRC is lost the migration goes on, and SRC is
asked what became of it.

The last line on standard output after a migration:
  migrated pid=<n> vram_bytes=<n> downtime_ms=<x> total_ms=<x> verified=yes|no
with the process's PID at DST; if the report was lost, "migrated pid=<n>" or "migrated pid=unknown".
Errors go to standard error, one line.)";

constexpr const char* kRunDescription =
    "gcr-migrate run -- COMMAND [ARGUMENT...]: start a command so that it can be migrated; sets "
    "LD_PRELOAD and nothing else";

constexpr const char* kRunFooter = R"(
The exit status is the command's; 125 if the preload library is missing, 126 or 127 if the command
cannot be started or found. GCR_PRELOAD names another libgcr-preload.so.)";

constexpr const char* kJournalDescription =
    "gcr-migrate journal PATH...: print what agents wrote down about migrations";

constexpr const char* kJournalFooter = R"(
A PATH is a journal, a directory of journals, or an agent's state_dir; here, not at an agent, so
that copies of another machine's can be read.

Exit status: 0, 1 if a journal is damaged, 2 if a PATH cannot be read. A last record that was not
completely written when its writer died was never promised to anybody: it is mentioned, no more.)";

constexpr const char* kResolveFooter = R"(
For a migration that no protocol can settle any more: the other host is gone for good after the
destination had the process ready. You answer for it that the other host will never run its copy;
then the copy here goes on, or is killed.)";

constexpr std::size_t kLeastIdCharacters = 8;

/// The command line as CLI11 reads it: what it cannot check lies here as text.
struct Raw {
  std::string source;
  std::string destination;
  std::string pid;
  MigrateOptions options;
};

const std::map<std::string, proto::Compression> kCompressions{{"auto", proto::COMPRESSION_AUTO},
                                                              {"none", proto::COMPRESSION_NONE},
                                                              {"lz4", proto::COMPRESSION_LZ4},
                                                              {"zstd", proto::COMPRESSION_ZSTD}};

const std::map<std::string, proto::ImageMode> kImageModes{{"auto", proto::IMAGE_MODE_AUTO},
                                                          {"stream", proto::IMAGE_MODE_STREAM},
                                                          {"rounds", proto::IMAGE_MODE_ROUNDS}};

const std::map<std::string, proto::Transport> kTransports{{"auto", proto::TRANSPORT_AUTO},
                                                          {"rdma", proto::TRANSPORT_RDMA},
                                                          {"tcp", proto::TRANSPORT_TCP}};

Result<int> parse_pid(const std::string& text) {
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc{} || end != text.data() + text.size() || pid <= 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("PID is a number above 0, not \"{}\"", control::printable(text)));
  }
  return pid;
}

std::filesystem::path personal_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::filesystem::path(config) / "gcr-migrate";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return std::filesystem::path(home) / ".config" / "gcr-migrate";
}

/// What is not given comes from the first folder that has an operator's certificate.
control::TlsFiles with_defaults(control::TlsFiles files) {
  std::filesystem::path folder = personal_folder();
  std::error_code ignored;
  if (folder.empty() || !std::filesystem::exists(folder / "operator.crt", ignored)) {
    folder = kSystemFolder;
  }
  if (files.authority.empty()) files.authority = folder / "ca.crt";
  if (files.certificate.empty()) files.certificate = folder / "operator.crt";
  if (files.key.empty()) files.key = folder / "operator.key";
  return files;
}

Result<MigrateOptions> check(const Raw& raw) {
  if (raw.source.empty() || raw.destination.empty() || raw.pid.empty()) {
    return Error(Code::kInvalidArgument, "SRC, DST and PID are needed: gcr-migrate SRC DST PID");
  }
  MigrateOptions options = raw.options;
  GCR_ASSIGN(options.source, control::Endpoint::parse(raw.source));
  GCR_ASSIGN(options.destination, control::Endpoint::parse(raw.destination));
  GCR_ASSIGN(options.pid, parse_pid(raw.pid));
  options.tls = with_defaults(options.tls);
  return options;
}

void describe_data(CLI::App& app, MigrateOptions& options) {
  app.add_option(
         "--transport", options.transport,
         "Of the data (default auto: RDMA where both hosts have it and their agents may send "
         "unencrypted, else TCP)")
      ->option_text("auto|rdma|tcp")
      ->transform(CLI::CheckedTransformer(kTransports));
  app.add_flag("--plaintext", options.plaintext,
               "TCP without TLS, where the configuration of both agents allows it");
  app.add_option("--lanes", options.lanes, "Data connections; 0: the agents choose")
      ->check(CLI::Range(0, 32));
}

void describe_pre_copy(CLI::App& app, MigrateOptions& options) {
  app.add_option("--downtime-limit", options.downtime_limit_ms,
                 "Switch over once what is left to send takes at most so many ms (default 300)")
      ->option_text("MS")
      ->check(CLI::Range(1, 3'600'000));
  app.add_option("--max-rounds", options.max_rounds,
                 "Switch over after so many rounds all the same (default 30)")
      ->option_text("N")
      ->check(CLI::Range(1, 1000));
  app.add_option("--max-bandwidth", options.max_bandwidth_bytes,
                 "Bytes per second to send at most while the process runs: 800M, 2GiB (default: no "
                 "limit)")
      ->option_text("RATE")
      ->transform(CLI::AsSizeValue(true));
  app.add_flag("--auto-converge", options.auto_converge,
               "Hold the process back where it changes GPU memory faster than it can be sent");
  app.add_flag("--strict", options.strict,
               "Give up, leaving the process where it is, rather than exceed the downtime limit");
  app.add_flag("--no-prefill", options.no_prefill,
               "Fill GPU memory at DST only after the switchover; it need not be free before");
}

void describe_images(CLI::App& app, MigrateOptions& options) {
  app.add_option("--compression", options.compression,
                 "Of the images of the process's ordinary memory (default auto: as the link needs)")
      ->option_text("auto|none|lz4|zstd")
      ->transform(CLI::CheckedTransformer(kCompressions));
  app.add_option("--image-mode", options.image_mode,
                 "Images in one stream at the switchover, or in rounds before it (default auto)")
      ->option_text("auto|stream|rounds")
      ->transform(CLI::CheckedTransformer(kImageModes));
}

void describe_output(CLI::App& app, MigrateOptions& options) {
  app.add_option("--trace", options.trace_path,
                 "Write the timeline of both sides there, for Perfetto or chrome://tracing")
      ->option_text("FILE");
  app.add_flag("--json", options.json, "Print one JSON object, the report, and nothing else");
  app.add_flag("--detach", options.detach,
               "Print `migration ID` and leave as soon as SRC has taken it on; see `status`")
      ->excludes("--trace");
}

void describe_certificates(CLI::App& app, control::TlsFiles& tls) {
  app.add_option("--ca", tls.authority, "The authority's certificate (default: ca.crt)")
      ->envname("GCR_AUTHORITY");
  app.add_option("--cert", tls.certificate,
                 "Your certificate (default: operator.crt in ~/.config/gcr-migrate, else in "
                 "/etc/gcr-migrate)")
      ->envname("GCR_CERTIFICATE");
  app.add_option("--key", tls.key, "Its private key (default: operator.key)")->envname("GCR_KEY");
}

void describe_migrate(CLI::App& app, Raw& raw) {
  app.name("gcr-migrate");
  app.description("Moves a running GPU process from the host SRC to the host DST while it runs.");
  app.footer(kFooter);
  app.set_version_flag("--version", "gcr-migrate " GCR_VERSION);
  app.add_option("SRC", raw.source, "Where the process runs: host or host:port of its agent");
  app.add_option("DST", raw.destination, "Where it shall run: host or host:port, as SRC sees it");
  app.add_option("PID", raw.pid, "The process, as the agent at SRC sees it");
  describe_data(app, raw.options);
  describe_pre_copy(app, raw.options);
  describe_images(app, raw.options);
  describe_output(app, raw.options);
  describe_certificates(app, raw.options.tls);
}

CLI::App* describe_run(CLI::App& app) {
  CLI::App* run = app.add_subcommand("run", kRunDescription);
  run->footer(kRunFooter);
  run->prefix_command();
  return run;
}

CLI::App* describe_journal(CLI::App& app, JournalOptions& options) {
  CLI::App* journal = app.add_subcommand("journal", kJournalDescription);
  journal->footer(kJournalFooter);
  journal->add_option("PATH", options.paths, "Files or directories")->required();
  journal->add_flag("--json", options.json, "Print one JSON object and nothing else");
  return journal;
}

/// The commands that ask an agent; what CLI11 cannot check lies here as text.
struct RawAsk {
  std::string agent;
  bool discard_here = false;
  AskOptions options;
};

CLI::App* describe_ask(CLI::App& app, RawAsk& raw, const char* name, const char* description) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_option("AGENT", raw.agent, "host or host:port")->required();
  command->add_flag("--json", raw.options.json, "Print one JSON object and nothing else");
  describe_certificates(*command, raw.options.tls);
  return command;
}

void describe_id(CLI::App& command, RawAsk& raw) {
  command.add_option("ID", raw.options.id, "The migration's id, or at least 8 characters of it")
      ->required();
}

/// One of them at most is parsed.
struct AskCommands {
  CLI::App* cancel;
  CLI::App* status;
  CLI::App* list;
  CLI::App* resolve;
};

AskCommands describe_asks(CLI::App& app, RawAsk& raw) {
  AskCommands commands{
      describe_ask(app, raw, "cancel",
                   "gcr-migrate cancel AGENT ID: give a migration up, as long as it is not "
                   "committed; AGENT is its source's"),
      describe_ask(app, raw, "status",
                   "gcr-migrate status AGENT ID: what AGENT knows of a migration"),
      describe_ask(app, raw, "list",
                   "gcr-migrate list AGENT: the migrations that are not finished"),
      describe_ask(app, raw, "resolve",
                   "gcr-migrate resolve AGENT ID --run-here|--discard-here --peer-is-gone: decide "
                   "what the agents cannot, because the other host is lost")};
  for (CLI::App* command : {commands.cancel, commands.status, commands.resolve}) {
    describe_id(*command, raw);
  }
  commands.list->add_flag("--all", raw.options.all, "The finished ones as well");
  CLI::App& resolve = *commands.resolve;
  resolve.footer(kResolveFooter);
  resolve.add_flag("--run-here", raw.options.run_here, "The copy at AGENT goes on");
  resolve.add_flag("--discard-here", raw.discard_here, "The copy at AGENT is killed")
      ->excludes("--run-here");
  resolve.add_flag(
      "--peer-is-gone", raw.options.peer_is_gone,
      "You know that the other host's copy will never run again. If it did there would "
      "be two");
  return commands;
}

AskOptions::Kind kind_of(const AskCommands& commands) {
  if (commands.cancel->parsed()) return AskOptions::Kind::kCancel;
  if (commands.status->parsed()) return AskOptions::Kind::kStatus;
  if (commands.list->parsed()) return AskOptions::Kind::kList;
  if (commands.resolve->parsed()) return AskOptions::Kind::kResolve;
  return AskOptions::Kind::kInvalid;
}

Status check_id(std::string& id) {
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool good = id.find_first_not_of("0123456789abcdef-") == std::string::npos;
  if (good && id.size() >= kLeastIdCharacters) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("an ID is a migration's UUID or at least {} characters of it, not \"{}\"",
                  kLeastIdCharacters, control::printable(id)));
}

Result<AskOptions> check(const RawAsk& raw, AskOptions::Kind kind) {
  AskOptions options = raw.options;
  options.kind = kind;
  GCR_ASSIGN(options.agent, control::Endpoint::parse(raw.agent));
  options.tls = with_defaults(options.tls);
  if (kind != AskOptions::Kind::kList) GCR_TRY(check_id(options.id));
  if (kind != AskOptions::Kind::kResolve) return options;
  if (options.run_here == raw.discard_here) {
    return Error(Code::kInvalidArgument, "resolve needs --run-here or --discard-here");
  }
  if (!options.peer_is_gone) {
    return Error(
        Code::kInvalidArgument,
        "resolve needs --peer-is-gone: your word that the other host's copy will never run "
        "again");
  }
  return options;
}

/// The words that CLI11 reads, and those after the "--" of "run --", which are the command's alone.
struct Words {
  std::vector<std::string> ours;
  std::vector<std::string> command;
};

Words split_words(int argc, char** argv) {
  Words words{{argv + 1, argv + argc}, {}};
  if (words.ours.empty() || words.ours.front() != "run") return words;
  const auto mark = std::ranges::find(words.ours, "--");
  if (mark == words.ours.end()) return words;
  words.command.assign(mark + 1, words.ours.end());
  words.ours.erase(mark, words.ours.end());
  return words;
}

Leave complain(const std::string& what) {
  fmt::print(stderr, "gcr-migrate: {} (see --help)\n", what);
  return Leave{static_cast<int>(ExitCode::kUsage)};
}

Options run_options(const CLI::App& run, const Words& words) {
  RunOptions options{run.remaining()};
  options.command.insert(options.command.end(), words.command.begin(), words.command.end());
  if (options.command.empty()) return complain("run needs a command: gcr-migrate run -- COMMAND");
  return options;
}

template <class T>
Options checked(Result<T> options) {
  if (!options) return complain(options.error().message());
  return *std::move(options);
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Raw raw;
  RawAsk ask;
  JournalOptions journal_options;
  CLI::App app;
  describe_migrate(app, raw);
  const CLI::App* run = describe_run(app);
  const CLI::App* journal = describe_journal(app, journal_options);
  const AskCommands asks = describe_asks(app, ask);
  Words words = split_words(argc, argv);
  try {
    std::ranges::reverse(words.ours);  // as CLI11 wants them
    app.parse(std::move(words.ours));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Leave{app.exit(error)};
    return complain(error.what());
  }
  if (run->parsed()) return run_options(*run, words);
  if (journal->parsed()) return journal_options;
  if (const auto kind = kind_of(asks); kind != AskOptions::Kind::kInvalid) {
    return checked(check(ask, kind));
  }
  return checked(check(raw));
}

}  // namespace gcr::cli

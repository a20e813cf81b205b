// The command line of gcr-migrate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/control.pb.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

struct MigrateOptions {
  control::Endpoint source;
  control::Endpoint destination;
  int pid = 0;
  unsigned lanes = 0;  ///< 0: the agents choose
  proto::Transport transport = proto::TRANSPORT_AUTO;
  bool plaintext = false;
  std::uint32_t downtime_limit_ms = 300;
  std::uint32_t max_rounds = 30;
  std::uint64_t max_bandwidth_bytes = 0;  ///< per second; 0: no limit
  bool auto_converge = false;
  bool strict = false;
  bool no_prefill = false;
  bool pause_before_switchover = false;
  proto::Compression compression = proto::COMPRESSION_AUTO;
  proto::ImageMode image_mode = proto::IMAGE_MODE_AUTO;
  bool detach = false;     ///< quit as soon as the migration has an id
  std::string trace_path;  ///< empty: no trace is written
  bool json = false;
  bool quiet = false;
  control::TlsFiles tls;
};

/// As for a migration; nothing is moved.
struct PreflightOptions {
  MigrateOptions migrate;
};

struct RunOptions {
  std::vector<std::string> command;  ///< at least one word
};

struct JournalOptions {
  std::vector<std::string> paths;  ///< at least one
  bool json = false;
};

struct TimelineOptions {
  std::string report_path;  ///< "-": standard input
};

/// A query about migrations that exist, or an order to one.
struct AskOptions {
  enum class Kind : std::uint8_t {
    kInvalid = 0,
    kCancel,
    kContinue,
    kSet,
    kStatus,
    kList,
    kHost,
    kResolve
  };
  Kind kind = Kind::kInvalid;
  control::Endpoint agent;
  std::string id;             ///< a UUID or how it begins, lower case; none for kList, kHost
  bool all = false;           ///< kList: the finished ones too
  bool run_here = false;      ///< kResolve: else the copy is discarded
  bool peer_is_gone = false;  ///< kResolve
  int pid = 0;                ///< kResolve: 0 if the journal tells
  std::optional<std::uint64_t> max_bandwidth_bytes;  ///< kSet: per second; 0: no limit
  std::optional<double> downtime_limit_ms;           ///< kSet
  bool watch = false;                                ///< kStatus: until it is finished
  bool json = false;
  control::TlsFiles tls;
};

/// The program is to exit: the command line was wrong, or its work is done (--help).
struct Leave {
  int status = 0;
};

using Options = std::variant<MigrateOptions, PreflightOptions, RunOptions, JournalOptions,
                             TimelineOptions, AskOptions, Leave>;

/// Reads the command line. Help goes to standard output, errors to standard error.
Options parse_options(int argc, char** argv);

}  // namespace gcr::cli

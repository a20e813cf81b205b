// The command line of gcr-migrate.
#pragma once

#include <cstdint>
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
  unsigned lanes = 0;  ///< 0: the agent chooses
  std::uint32_t downtime_limit_ms = 300;
  std::uint32_t max_rounds = 30;
  std::uint64_t max_bandwidth_bytes = 0;  ///< per second; 0: no limit
  bool auto_converge = false;
  bool strict = false;
  bool no_prefill = false;
  proto::Compression compression = proto::COMPRESSION_AUTO;
  proto::ImageMode image_mode = proto::IMAGE_MODE_AUTO;
  std::string trace_path;  ///< empty: no trace is written
  bool json = false;
  control::TlsFiles tls;
};

struct RunOptions {
  std::vector<std::string> command;  ///< at least one word
};

struct JournalOptions {
  std::vector<std::string> paths;  ///< at least one
  bool json = false;
};

/// The command line asked for something that is done already (--help), or it is wrong: leave.
struct Leave {
  int status = 0;
};

/// Reads the command line. Help goes to standard output, what is wrong to standard error.
std::variant<MigrateOptions, RunOptions, JournalOptions, Leave> parse_options(int argc,
                                                                              char** argv);

}  // namespace gcr::cli

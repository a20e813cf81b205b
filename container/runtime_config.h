// The configuration of gcr-runtime, /etc/gcr-migrate/runtime.toml (TOML). Every key has a default;
// unknown keys are errors.
//
//   runtime     = ""     # the next runtime; empty: the first of /usr/bin/runc, /usr/sbin/runc and
//                        # /usr/bin/crun that exists
//   init        = ""     # gcr-init; empty: next to gcr-runtime or in ../libexec/gcr-migrate
//   library     = ""     # libgcr-preload.so; empty: in ../lib/gcr-migrate or ../lib
//   log         = ""     # a file; empty: the system's log
//   state       = "/var/lib/gcr-migrate/received"  # which jobs have come, and left
//   allow_userfaultfd = true  # whether containers may use userfaultfd(2) if their filter for
//                             # system calls refuses it
#pragma once

#include <filesystem>
#include <string>

#include "src/base/result.h"

namespace gcr::container {

inline constexpr const char* kDefaultRuntimeConfig = "/etc/gcr-migrate/runtime.toml";
/// Names another configuration.
inline constexpr const char* kConfigVariable = "GCR_RUNTIME_CONFIG";

struct RuntimeConfig {
  std::filesystem::path runtime;  ///< may be empty
  std::filesystem::path init;     ///< may be empty
  std::filesystem::path library;  ///< may be empty
  std::filesystem::path log;      ///< may be empty
  std::filesystem::path state = "/var/lib/gcr-migrate/received";
  bool allow_userfaultfd = true;
};

/// Parses a configuration; `name` is the file's name in errors. kInvalidArgument, with file, line
/// and key, for the first error.
Result<RuntimeConfig> parse_runtime_config(const std::string& text, const std::string& name);

/// Reads the file; the defaults if there is none.
Result<RuntimeConfig> load_runtime_config(const std::filesystem::path& path);

/// Returns the next runtime. kNotFound if there is none, kInvalidArgument if it is gcr-runtime.
Result<std::filesystem::path> next_runtime(const RuntimeConfig& config);

/// Returns the paths of gcr-init and of the preload library. kNotFound, naming where they were
/// searched for, if one does not exist.
Result<std::filesystem::path> find_init(const RuntimeConfig& config);
Result<std::filesystem::path> find_library(const RuntimeConfig& config);

}  // namespace gcr::container

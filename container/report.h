// Where gcr-runtime says what it did: its own log, standard error, and the log that the engine
// reads.
#pragma once

#include <filesystem>
#include <string>

#include "container/command_line.h"

namespace gcr::container {

/// Appends a line to the file; to the system's log (syslog(3)) if `log` is empty. A log that cannot
/// be written is no reason to fail.
void log_line(const std::filesystem::path& log, const std::string& message);

/// Reports why a command failed: on standard error, in our log, and in the engine's log, in the
/// format that it asked for.
void report_failure(const CommandLine& command, const std::filesystem::path& log,
                    const std::string& message);

}  // namespace gcr::container

// Logging: spdlog to standard error, one line per event. Processes call init_logging once in main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace gcr {

/// Sends log lines to standard error as "<time> <level> <program>[<pid>] <message>". `level` is one
/// of spdlog's names ("debug", "info", "warning", "error"). Call once, before any thread starts.
void init_logging(const std::string& program, const std::string& level);

}  // namespace gcr

// Logging: spdlog to standard error, one line per event. Processes call init_logging once in main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "src/base/uuid.h"

namespace gcr {

/// Sends log lines to standard error as "<time> <level> <program>[<pid>] <message>"; if that is the
/// journal of systemd, as "<priority><message>" (sd-daemon(3)), because it adds the rest. `level`
/// is one of spdlog's names ("debug", "info", "warning", "error"). Call once, before any thread
/// starts.
void init_logging(const std::string& program, const std::string& level);

/// Adds "migration=<uuid>" before the message of every later line of this process. Any thread.
void log_migration(const Uuid& migration);

}  // namespace gcr

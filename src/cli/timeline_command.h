// `gcr-migrate timeline REPORT`: a report that `--json` printed, as a picture.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Reads the file, or standard input for "-", and writes an SVG to standard output. The exit status
/// (exit_code.h): kMigrated, or kUsage with a line on standard error.
int timeline_command(const TimelineOptions& options);

}  // namespace gcr::cli

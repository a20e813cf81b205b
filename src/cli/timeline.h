// Draws a migration: both hosts, their tracks, the rounds and the downtime.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cli {

/// Returns an SVG of two panels with one row per track: the whole migration, and below it the
/// downtime, enlarged. Legible at 840 pixels, on a light or a dark page. kInvalidArgument if the
/// report has no phases to show.
Result<std::string> timeline_svg(const proto::MigrateReport& report);

}  // namespace gcr::cli

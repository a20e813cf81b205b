// Times, and a migration's Progress, in words. Text and numbers from an agent may have any value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::cli {

/// Formats a duration: "420 ms", "3.1 s", "2 min 5 s", "1 h 3 min"; "-" if it is not valid.
std::string duration_text(double ms);

/// Formats a time: "2025-03-01T12:00:00Z"; "-" if it is not known.
std::string time_text(std::int64_t unix_ms);

/// Returns the part of this round that has been sent, 0 to 1; 0 before the first round.
double share_sent(const proto::Progress& progress);

/// Returns details in order of importance: bytes, rates, the expected downtime, the time left.
/// Omits unknown ones, and phase, round and share.
std::vector<std::string> progress_details(const proto::Progress& progress);

/// Returns the progress on one line, without the phase: "round 3, 62 %, 1.2 GiB of 2 GiB, ...".
std::string progress_line(const proto::Progress& progress);

}  // namespace gcr::cli

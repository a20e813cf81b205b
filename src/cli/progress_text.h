// A migration's Progress in words. Texts and numbers from an agent may be anything.
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::cli {

/// "420 ms", "3.1 s", "2 min 5 s", "1 h 3 min"; "-" if it is not a time.
std::string duration_text(double ms);

/// How much of this round has been sent, 0 to 1; 0 before there is a round.
double share_sent(const proto::Progress& progress);

/// Details besides phase, round and share, in order of importance: bytes, rates, the expected
/// downtime, the time left. Unknown ones are left out.
std::vector<std::string> progress_details(const proto::Progress& progress);

/// All of it on one line, without the phase: "round 3, 62 %, 1.2 GiB of 2 GiB, ...".
std::string progress_line(const proto::Progress& progress);

}  // namespace gcr::cli

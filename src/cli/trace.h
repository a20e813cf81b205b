// A migration's timeline as a file for Perfetto and chrome://tracing.
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::cli {

/// Returns the phases in order of time, a containing phase before those it contains. The pointers
/// live as long as `phases`.
std::vector<const proto::PhaseTime*> in_order_of_time(
    const google::protobuf::RepeatedPtrField<proto::PhaseTime>& phases);

/// Returns the track's name; "process" if the agent gave none.
std::string track_of(const proto::PhaseTime& phase);

/// Closings of the gate that were undone at the source; if the process migrated, they are the part
/// of the downtime that ended before `gate_closed_ms`.
struct UndoneClosings {
  unsigned count = 0;
  double duration_ms = 0;
};
UndoneClosings undone_closings(const proto::MigrateReport& report);

/// Returns the timeline as trace events in JSON: a process per host, a thread per track, a slice
/// per phase and round, and an instant at the closing and the reopening of the gate. On every track
/// slices follow each other or nest: one that would only overlap gets an additional track. No time
/// is negative.
std::string to_trace(const proto::MigrateReport& report);

}  // namespace gcr::cli

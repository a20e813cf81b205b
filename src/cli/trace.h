// A migration's timeline as a file that opens in Perfetto and chrome://tracing.
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::cli {

/// The phases in order of time, those that contain others before them. The pointers live as long as
/// `phases`.
std::vector<const proto::PhaseTime*> in_order_of_time(
    const google::protobuf::RepeatedPtrField<proto::PhaseTime>& phases);

/// The track's name; "process" if the agent gave none.
std::string track_of(const proto::PhaseTime& phase);

/// Closings of the gate after which it was opened again at the source; if the process migrated,
/// they are a part of the downtime that is over before `gate_closed_ms`.
struct UndoneClosings {
  unsigned count = 0;
  double duration_ms = 0;
};
UndoneClosings undone_closings(const proto::MigrateReport& report);

/// The timeline as trace events in JSON: a process per host, a thread per track, a slice per phase
/// and round, and an instant where the gate closed and where it opened again. On every track slices
/// follow each other or nest: one that would only overlap gets a track beside it. No time is
/// negative.
std::string to_trace(const proto::MigrateReport& report);

}  // namespace gcr::cli

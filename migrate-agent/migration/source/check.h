// Preflight only, for run_check() and run_suspended_check() (migrate-agent/migration/entry.h).
#pragma once

#include <vector>

#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/worker/runtime/context.h"

namespace gcr::migration {

/// Runs preflight for the job with the members `pids`, the root first. `suspended`: the job's
/// description if it is suspended, else null. A suspended job is claimed already, so it is not
/// claimed again, and its processes are not asked about their GPU state.
Result<proto::Envelope> check(worker::WorkerContext& context, const proto::MigrateRequest& request,
                              const std::vector<pid_t>& pids,
                              const preflight::SuspendedJob* suspended);

}  // namespace gcr::migration

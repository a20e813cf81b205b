// Preflight alone, as run_check() of migrate-agent/worker/runtime does it.
#pragma once

#include <vector>

#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/worker/runtime/context.h"

namespace gcr::migration {

/// For the job whose members are `pids`, the root first; a job that is `suspended` is claimed
/// already, and asked nothing. Null: it is not.
Result<proto::Envelope> check(worker::WorkerContext& context, const proto::MigrateRequest& request,
                              const std::vector<pid_t>& pids,
                              const preflight::SuspendedJob* suspended);

}  // namespace gcr::migration

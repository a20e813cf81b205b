// Finds and describes suspended jobs, from journals and keepers. Blocks: for the worker's pool.
#pragma once

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/gpu/host_copy/host_copy.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/worker/runtime/context.h"

namespace gcr::migration {

/// Finds the suspension's journal; the requester may move `pid`. kNotFound: it is not suspended.
Result<journal::Entry> find_suspended(const worker::WorkerContext& worker, pid_t pid);

/// Gives this worker the job and its journal as long as the log lives; then the job is suspended
/// and no migration moves it. kRefused if that cannot be. `pid` is for messages.
Result<commit::SourceLog> take_suspended(worker::WorkerContext& worker, const journal::Entry& entry,
                                         pid_t pid);

/// Opens the copy of the job's VRAM. kDataLoss if its keeper has ended.
Result<gpu::HostCopy> open_copy(std::span<const journal::Record> records, pid_t pid);

/// The members that live; the requester may move all. kNotFound if the first one has ended.
Result<journal::ProcessIds> living_members(const worker::Permissions& permissions,
                                           std::span<const journal::Record> records);

/// Describes the job with the members `living`. kRefused if one that used GPUs has ended.
Result<preflight::SuspendedJob> describe_suspended(std::span<const journal::Record> records,
                                                   const journal::ProcessIds& living,
                                                   const gpu::HostCopy& copy);

}  // namespace gcr::migration

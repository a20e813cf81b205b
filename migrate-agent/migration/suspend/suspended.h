// Suspended jobs, as their journals and keepers tell of them. All of it blocks, on a thread of the
// worker's pool.
#pragma once

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/gpu/host_copy/host_copy.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/worker/runtime/context.h"

namespace gcr::migration {

/// The journal that has left this process suspended, which the asker may move. kNotFound: it is not
/// suspended.
Result<journal::Entry> find_suspended(const worker::WorkerContext& worker, pid_t pid);

/// Makes the job this worker's, and its journal as long as the log lives: it is suspended, and no
/// migration moves it. kRefused if not; `pid` is for the texts.
Result<commit::SourceLog> take_suspended(worker::WorkerContext& worker, const journal::Entry& entry,
                                         pid_t pid);

/// The copy of the job's VRAM. kDataLoss if its keeper has ended.
Result<gpu::HostCopy> open_copy(std::span<const journal::Record> records, pid_t pid);

/// The members that live, in their order; the asker may move all of them. kNotFound if the first
/// has ended.
Result<journal::ProcessIds> living_members(const worker::Permissions& permissions,
                                           std::span<const journal::Record> records);

/// What is known of the job whose `living` members these are. kRefused if one that uses GPUs has
/// ended.
Result<preflight::SuspendedJob> describe_suspended(std::span<const journal::Record> records,
                                                   const journal::ProcessIds& living,
                                                   const gpu::HostCopy& copy);

}  // namespace gcr::migration

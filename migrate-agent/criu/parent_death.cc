#include "migrate-agent/criu/parent_death.h"

#include <fmt/format.h>

#include "migrate-agent/procfs/procfs.h"

namespace gcr::criu {

Status forget_parent_death_signal(pid_t pid, const ReadImage& read, const WriteImage& write) {
  for (const pid_t tid : procfs::threads(pid)) {
    const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
    if (pids.empty()) continue;
    GCR_ASSIGN(wire::Core core, read_core(pids.back(), read));
    if (!core.thread_core().has_pdeath_sig()) continue;
    core.mutable_thread_core()->clear_pdeath_sig();
    GCR_TRY(write_core(pids.back(), core, write));
  }
  return {};
}

}  // namespace gcr::criu

#include "migrate-agent/source/examination.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/data/offer.h"
#include "migrate-agent/device/device.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/preflight/comparison.h"
#include "migrate-agent/process/inspect.h"
#include "migrate-agent/procfs/procfs.h"
#include "src/base/limits.h"

namespace gcr::agent {
namespace {

/// The id of a thread of `pid` in its own PID namespace. The driver may give ids of the caller's
/// namespace, which differ for a process that was restored into a namespace of its own.
pid_t in_own_namespace(pid_t pid, pid_t tid) {
  const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
  return pids.empty() ? tid : pids.back();
}

/// The last number of a line like "NSsid: 4100 17".
pid_t innermost(const std::string& line) {
  std::istringstream numbers(line);
  pid_t last = 0;
  for (pid_t number = 0; numbers >> number;) last = number;
  return last;
}

/// Every PID that the process uses in its own PID namespace.
std::set<pid_t> used_pids(pid_t pid) {
  std::set<pid_t> used;
  for (const char* field : {"NSpid", "NSpgid", "NSsid"}) {
    used.insert(innermost(procfs::status_field(std::to_string(pid), field)));
  }
  for (const pid_t tid : procfs::threads(pid)) used.insert(in_own_namespace(pid, tid));
  used.erase(0);
  return used;
}

/// The state of CUDA in the process, and its restore thread.
void look_at_cuda(pid_t pid, Examination& found) {
  const auto control = found.host.driver->control(pid);
  const auto state = control->state();
  if (!state) {
    found.findings.add("cuda-state", state.error().message());
    return;
  }
  if (*state != device::Control::State::kRunning) {
    found.findings.add("cuda-state", "CUDA in the process is locked, checkpointed or broken");
    return;
  }
  const auto thread = control->restore_thread();
  if (thread) {
    found.process.set_cuda_restore_tid(in_own_namespace(pid, *thread));
  } else {
    found.findings.add("cuda-state", thread.error().message());
  }
}

void look_at_gpus(Examination& found) {
  std::set<std::string> used;
  for (const auto& [id, allocation] : found.inventory) used.insert(to_bytes(allocation.gpu));
  for (const proto::Gpu& gpu : found.host.facts.gpus()) {
    if (used.contains(gpu.uuid())) check_gpu(gpu, found.findings);
  }
  const std::uint64_t needed = used.size() * kContextReserveBytes;
  const std::uint64_t available = found.host.facts.memory_available_bytes();
  if (available >= needed) return;
  found.findings.add("memory-too-small",
                     fmt::format("{} of memory are available; the driver's checkpoint takes up to "
                                 "{} for {} GPUs",
                                 format_bytes(available), format_bytes(needed), used.size()));
}

void look_at_vram(pid_t pid, Examination& found) {
  auto access = open_access(pid);
  if (!access) {
    const bool busy = access.error().code() == Code::kUnavailable;
    found.findings.add(busy ? "in-migration" : "no-door", access.error().message());
    return;
  }
  const auto state = (*access)->look();
  const auto allocations = (*access)->allocations();
  if (!state || !allocations) {
    found.findings.add("no-door", (state ? allocations.error() : state.error()).message());
    return;
  }
  check_access(*state, found.findings);
  found.process.set_door_tid(state->thread);
  for (const LocalAllocation& one : *allocations) found.inventory.emplace(one.local_id, one);
  check_inventory(found.inventory, found.findings);
  found.access = std::move(*access);
}

/// False if the process must not be examined further.
bool look_at_process(pid_t pid, Examination& found) {
  auto inspection = process::inspect(pid);
  if (!inspection) {
    const bool gone = inspection.error().code() == Code::kNotFound;
    found.findings.add(gone ? "no-process" : "cannot-inspect", inspection.error().message());
    return false;
  }
  found.process = std::move(inspection->facts);
  const bool ours = std::ranges::none_of(
      inspection->findings.list(), [](const auto& finding) { return finding.id() == "not-ours"; });
  found.findings.take(inspection->findings.release());
  for (const pid_t used : used_pids(pid)) found.process.add_used_pids(used);
  return ours;
}

void look_at_images(const proto::MigrateRequest& request, const Config& config,
                    Examination& found) {
  const bool in_rounds = request.image_mode() == proto::IMAGE_MODE_ROUNDS;
  check_room(config, in_rounds ? found.process.image_bytes() : 0, found.findings);
  if (!in_rounds || found.host.facts.criu_version() == 0) return;
  const Status tracking = criu::check_memory_tracking(config.criu);
  if (!tracking) found.findings.add("no-dirty-tracking", tracking.error().message());
}

}  // namespace

void check_access(const AccessState& state, preflight::Findings& findings) {
  if (state.managed_memory) {
    findings.add("managed-memory", "the process uses managed memory (cuMemAllocManaged)");
  }
  if (state.ipc_memory) {
    findings.add("ipc-memory", "the process shares GPU memory with another one by legacy IPC");
  }
  if (state.foreign_handles) {
    findings.add("foreign-handles",
                 "the process shares GPU memory with another one by exported handles");
  }
}

void check_inventory(const Inventory& inventory, preflight::Findings& findings) {
  if (inventory.size() <= kMaxBuffers) return;
  findings.add("too-many-buffers",
               fmt::format("it has {} allocations, {} are allowed", inventory.size(), kMaxBuffers));
}

proto::Buffer describe(const LocalAllocation& allocation) {
  proto::Buffer buffer;
  buffer.set_size_bytes(allocation.size_bytes);
  buffer.set_gpu_uuid(to_bytes(allocation.gpu));
  return buffer;
}

Examination examine(const proto::MigrateRequest& request, const Config& config) {
  Examination found;
  found.host = survey(config, found.findings);
  const pid_t pid = request.pid();
  if (!look_at_process(pid, found)) return found;
  look_at_images(request, config, found);
  look_at_vram(pid, found);
  if (found.access && found.host.driver) look_at_cuda(pid, found);
  look_at_gpus(found);
  return found;
}

proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const Config& config) {
  proto::PreflightRequest asked;
  asked.set_no_prefill(request.no_prefill());
  asked.set_source_agent(config.advertise.empty() ? fmt::format(":{}", config.listen.port)
                                                  : config.advertise);
  asked.set_transport(request.transport());
  asked.set_plaintext(request.plaintext());
  *asked.mutable_offer() = data_offer(config.unencrypted_data);
  *asked.mutable_host() = examination.host.facts;
  *asked.add_members() = examination.process;
  for (const auto& [id, one] : examination.inventory) *asked.add_buffers() = describe(one);
  return asked;
}

}  // namespace gcr::agent

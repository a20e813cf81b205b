// The part of the examination that looks at each process of a job.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/examine/steps.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/surroundings.h"
#include "migrate-agent/process/layer/tree.h"

namespace gcr::preflight {
namespace {

/// A child stays in vfork for less than a millisecond, unless it is delayed.
constexpr std::chrono::seconds kExecutionPatience{2};
constexpr std::chrono::milliseconds kExecutionPause{1};

/// Returns the last number of a line such as "NSsid: 4100 17".
pid_t innermost(const std::string& line) {
  std::istringstream numbers(line);
  pid_t last = 0;
  for (pid_t number = 0; numbers >> number;) last = number;
  return last;
}

/// Returns every PID that the process uses in its own PID namespace.
std::set<pid_t> used_pids(pid_t pid) {
  std::set<pid_t> used;
  for (const char* field : {"NSpid", "NSpgid", "NSsid"}) {
    used.insert(innermost(procfs::status_field(std::to_string(pid), field)));
  }
  for (const pid_t tid : procfs::threads(pid)) used.insert(in_own_namespace(pid, tid));
  used.erase(0);
  return used;
}

/// Returns whether two processes are in the same control groups.
bool in_same_groups(pid_t pid, pid_t other) {
  return procfs::read_text(fmt::format("/proc/{}/cgroup", pid)) ==
         procfs::read_text(fmt::format("/proc/{}/cgroup", other));
}

/// Adds findings for namespaces and limits in which a member differs from the root: they cannot be
/// restored for one member alone.
void compare_with_root(pid_t pid, pid_t root, process::Inspection& member,
                       const proto::GroupLimits& root_limits) {
  for (const char* kind : {"mnt", "pid", "time", "ipc"}) {
    if (procfs::namespace_link(pid, kind) == procfs::namespace_link(root, kind)) continue;
    member.findings.add(findings::kNamespaces,
                        fmt::format("it is in another {} namespace than process {}", kind,
                                    process::describe_process(root)));
  }
  if (member.facts.limits().SerializeAsString() == root_limits.SerializeAsString()) return;
  member.findings.add(findings::kCgroupLimits,
                      fmt::format("its control groups have other limits than those of process {}",
                                  process::describe_process(root)));
}

/// Prefixes each finding with the member that it concerns.
std::vector<proto::Finding> findings_of_member(pid_t pid, findings::Findings findings) {
  std::vector<proto::Finding> list = findings.release();
  const std::string who = process::describe_process(pid);
  for (proto::Finding& finding : list) {
    finding.set_found(fmt::format("in process {}: {}", who, finding.found()));
  }
  return list;
}

/// Succeeds if there is no blocker. kNotFound if the process is ending, which may be the reason of
/// the blockers.
Status judge_member(pid_t pid, findings::Findings findings) {
  const std::string reason = findings::reason_of(findings_of_member(pid, std::move(findings)));
  if (reason.empty()) return {};
  const auto stat = procfs::read_stat(pid);
  if (!stat || procfs::has_ended(*stat) || procfs::is_exiting(*stat)) {
    return Error(Code::kNotFound, "it ended while it was examined");
  }
  return Error(Code::kRefused, reason);
}

/// Parameters of the examination of each member.
struct Scope {
  process::Together together;
  process::OutsideTcp outside_tcp;
  const proto::GroupLimits* limits;  ///< of all members, if they are known; else null
};

/// Examines the first process; false if the examination must end here.
bool examine_root(pid_t pid, const Scope& scope, Examination& found) {
  auto inspection = process::inspect(pid, scope.together, scope.outside_tcp, scope.limits);
  if (!inspection) {
    const bool gone = inspection.error().code() == Code::kNotFound;
    found.findings.add(gone ? findings::kNoProcess : findings::kCannotInspect,
                       inspection.error().message());
    return false;
  }
  found.members.push_back({pid, std::move(inspection->facts), std::move(inspection->confinement)});
  const bool ours = std::ranges::none_of(inspection->findings.list(), [](const auto& finding) {
    return findings::is(finding, findings::kNotOurs);
  });
  found.findings.take(inspection->findings.release());
  return ours;
}

/// Examines another member. Zombies move with their parents and are not examined.
void examine_member(pid_t pid, const Scope& scope, Examination& found) {
  const pid_t root = found.members.front().pid;
  const proto::GroupLimits limits = found.members.front().facts.limits();
  auto inspection = process::inspect(pid, scope.together, scope.outside_tcp,
                                     in_same_groups(pid, root) ? &limits : scope.limits);
  if (inspection) {
    compare_with_root(pid, root, *inspection, limits);
    found.members.push_back(
        {pid, std::move(inspection->facts), std::move(inspection->confinement)});
    found.findings.take(findings_of_member(pid, std::move(inspection->findings)));
  } else if (inspection.error().code() != Code::kNotFound) {
    found.findings.add(findings::kCannotInspect, inspection.error().message());
  }
}

/// Finds the memory files that only the job uses: they move with it.
void find_memory_files(Examination& found) {
  using NamedFiles = std::vector<process::NamedFile>;
  std::deque<NamedFiles> named;  // `members` refers to its elements
  std::vector<memory_files::Member> members;
  for (const Member& member : found.members) {
    named.push_back(process::named_files(member.pid, false).value_or(NamedFiles()));
    members.push_back({member.pid, named.back()});
  }
  memory_files::Outgoing outgoing = memory_files::find(members);
  found.findings.take(outgoing.findings.release());
  std::uint64_t bytes = 0;
  for (memory_files::OutgoingFile& file : outgoing.files) {
    bytes += file.fact.held_bytes();
    *found.memory_files.Add() = std::move(file.fact);
  }
  proto::ProcessFacts& root = found.members.front().facts;
  root.set_image_bytes(root.image_bytes() + bytes);
  for (Member& member : found.members) {
    for (proto::FileFact& file : *member.facts.mutable_files()) {
      const auto other = outgoing.shared_with.find(file.path());
      if (other != outgoing.shared_with.end()) file.set_shared_with(other->second);
    }
  }
}

/// Warns about System V objects of the host's namespace that may belong to the job. Those of a
/// container belong to it, and would be lost.
void check_system_v(const process::Together& together, Examination& found) {
  if (procfs::namespace_link(found.members.front().pid, "ipc") !=
      procfs::namespace_link(together.in_place_of(), "ipc")) {
    return;
  }
  std::set<uid_t> users;
  for (const Member& member : found.members) users.insert(member.facts.uid());
  std::string objects;
  const Status looked = together.in_place([&]() -> Status {
    objects = process::unattached_objects(users);
    return {};
  });
  if (!looked) found.findings.add(findings::kCannotInspect, looked.error().message());
  if (objects.empty()) return;
  const bool in_container = together.container().has_value();
  found.findings.add(in_container ? findings::kSystemV : findings::kSystemVStays,
                     fmt::format("the users of the job have {} {}", objects,
                                 in_container ? "in its container" : "on this host"));
}

/// Whether the job goes elsewhere: to another host, or into a checkpoint.
bool goes_elsewhere(const proto::MigrateRequest& request) {
  return request.has_checkpoint() || !request.destination().empty();
}

/// A job that leaves a container for another host needs one that receives it; others need none.
void check_container(const proto::MigrateRequest& request,
                     const std::optional<procfs::Container>& container, Examination& found) {
  found.container = container;
  const bool needs_one = !request.has_checkpoint() && goes_elsewhere(request);
  if (container && needs_one && !request.has_container()) {
    found.findings.add(findings::kContainer,
                       "it is in a container, and no container was named to receive it");
  } else if (!container && request.has_container()) {
    found.findings.add(findings::kContainer,
                       "a container was named to receive it, but it is in none that gcr-runtime "
                       "has started");
  }
}

/// A container whose files cannot be carried cannot be left.
void check_layers(const procfs::Container& container, Examination& found) {
  auto trees = layer::trees_of(container.init().pid());
  if (trees) {
    found.carried = std::move(*trees);
  } else {
    found.findings.add(findings::kContainer, trees.error().message());
  }
}

/// The interfaces of the container that the job is in. kRefused, with the reason why no address
/// moves.
Result<proto::Network> moving_network(const proto::MigrateRequest& request,
                                      const Examination& found) {
  if (request.destination().empty()) return Error(Code::kRefused, "it goes to no other host");
  if (!found.container) return Error(Code::kRefused, "it is in no container");
  const pid_t init = found.container->init().pid();
  if (procfs::namespace_link(init, "net") == procfs::namespace_link(::getpid(), "net")) {
    return Error(Code::kRefused, "its container uses the network of the host");
  }
  proto::Network network;
  GCR_TRY(found.container->inside([&]() -> Status {
    GCR_ASSIGN(network, network::read_interfaces());
    return {};
  }));
  if (network.interfaces().empty()) {
    return Error(Code::kRefused, "its container has no network interface that is up");
  }
  GCR_TRY(network::check_size(network));
  return network;
}

void find_network(const proto::MigrateRequest& request, Examination& found) {
  auto network = moving_network(request, found);
  if (network) {
    found.network = std::move(*network);
  } else {
    found.findings.add(findings::kAddressStays, network.error().message());
  }
}

/// The container whose job has this root. None also if the root is gone.
std::optional<procfs::Container> container_of(pid_t root) {
  return procfs::Container::of_root(root).value_or(std::nullopt);
}

}  // namespace

pid_t in_own_namespace(pid_t pid, pid_t tid) {
  const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
  return pids.empty() ? tid : pids.back();
}

void wait_for_vforks(const std::vector<pid_t>& pids, findings::Findings& findings) {
  const auto end = std::chrono::steady_clock::now() + kExecutionPatience;
  for (const pid_t pid : pids) {
    while (procfs::is_in_vfork(pid) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kExecutionPause);
    }
    if (!procfs::is_in_vfork(pid)) continue;
    findings.add(findings::kInVfork,
                 fmt::format("process {} still shares its parent's memory, as in vfork",
                             process::describe_process(pid)));
  }
}

Result<process::Confinement> examine_late(const proto::MigrateRequest& request, pid_t pid,
                                          const std::vector<pid_t>& pids,
                                          const proto::GroupLimits& limits) {
  const process::Together together({pids.begin(), pids.end()}, container_of(request.pid()));
  GCR_ASSIGN(auto inspection,
             process::inspect(pid, together, outside_tcp(request),
                              in_same_groups(pid, request.pid()) ? &limits : nullptr));
  compare_with_root(pid, request.pid(), inspection, limits);
  inspection.findings.accept(request.accepted());
  GCR_TRY(judge_member(pid, std::move(inspection.findings)));
  return std::move(inspection.confinement);
}

Status examine_again(pid_t pid, const process::Confinement& before) {
  auto findings = process::inspect_again(pid, before);
  const Status fits = findings ? judge_member(pid, std::move(*findings)) : findings.error();
  return !fits && fits.error().code() == Code::kNotFound ? Status() : fits;
}

bool examine_members(const proto::MigrateRequest& request, const std::vector<pid_t>& pids,
                     const proto::GroupLimits* limits, Examination& found) {
  const Scope scope{process::Together({pids.begin(), pids.end()}, container_of(pids.front())),
                    outside_tcp(request), limits};
  if (!examine_root(pids.front(), scope, found)) return false;
  check_container(request, scope.together.container(), found);
  if (found.container && goes_elsewhere(request)) check_layers(*found.container, found);
  if (request.keep_tcp()) find_network(request, found);
  if (pids.size() > gpu::kMaxMembers) {
    found.findings.add(
        findings::kTooManyProcesses,
        fmt::format("it has {} processes, {} are allowed", pids.size(), gpu::kMaxMembers));
    return false;
  }
  for (const pid_t pid : std::span(pids).subspan(1)) examine_member(pid, scope, found);
  for (const pid_t pid : pids) {
    for (const pid_t used : used_pids(pid)) found.members.front().facts.add_used_pids(used);
  }
  find_memory_files(found);
  check_system_v(scope.together, found);
  return true;
}

void find_plugins(const worker::Config& config, Examination& found) {
  const bool has_gpus = std::ranges::any_of(
      found.host.facts.gpus(), [](const proto::Gpu& gpu) { return gpu.kfd_id() != 0; });
  for (Member& member : found.members) {
    const std::string name = criu::plugin_for(member.pid);
    if (name.empty() || (!has_gpus && !procfs::uses_kfd(member.pid))) continue;
    member.facts.set_needs_amdgpu_plugin(true);
    const std::uint32_t release = found.host.facts.criu_version();
    if (found.criu_plugin != nullptr || release == 0) continue;
    auto plugin = criu::open_plugin(config.criu, name, release);
    if (!plugin) {
      found.findings.add(findings::kCriuPlugin, plugin.error().message());
      return;
    }
    found.criu_plugin = std::move(*plugin);
  }
}

}  // namespace gcr::preflight

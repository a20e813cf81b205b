// Preflight only: the findings of both sides, without any other step of a migration.
#include <algorithm>
#include <map>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/checkpoint_target.h"

namespace gcr::migration::source {
namespace {

/// Asks the destination for its findings, on a connection of its own.
Result<proto::PreflightReply> ask_destination(worker::WorkerContext& context,
                                              const preflight::Examination& found,
                                              const proto::MigrateRequest& request) {
  GCR_ASSIGN(auto agent, context.agent_at(request.destination()));
  proto::PreflightRequest question = preflight::preflight_request(found, request, context.config);
  const Uuid id = Uuid::random();
  question.set_only(true);
  question.set_migration_id(to_bytes(id));
  question.set_ordered_by(context.channel.peer().common_name);
  AgentTarget target(context.io, std::move(agent), id, [](const Error&) {});
  return target.preflight(question);
}

/// Adds the destination's findings and host facts.
void compare_with_destination(worker::WorkerContext& context, const proto::MigrateRequest& request,
                              preflight::Examination& found, proto::CheckReply& reply) {
  auto answer = ask_destination(context, found, request);
  if (!answer) {
    const Code code = answer.error().code();
    const bool silent = code == Code::kUnavailable || code == Code::kTimeout;
    return found.findings.take({findings::make_finding(
        silent ? findings::kDestinationUnreachable : findings::kDestinationRefused,
        findings::Side::kDestination, answer.error().message())});
  }
  *reply.mutable_destination() = std::move(*answer->mutable_host());
  found.findings.take({answer->findings().begin(), answer->findings().end()});
}

/// Adds the findings of the target. A store only reports whether it has enough space.
Status compare_with_target(worker::WorkerContext& context, const proto::MigrateRequest& request,
                           preflight::Examination& found, proto::CheckReply& reply) {
  if (!request.has_checkpoint()) {
    compare_with_destination(context, request, found, reply);
    return {};
  }
  GCR_ASSIGN(const worker::MovableProcess process,
             context.permissions.check_process(request.pid()));
  GCR_ASSIGN(const store::Owner owner,
             owner_of(context, request, process, found.container.has_value()));
  const worker::Permissions stored = context.permissions.for_store_of(owner.uid);
  for (const pid_t pid : found.pids()) {
    const auto allowed = stored.check_process(pid);
    if (!allowed && allowed.error().code() == Code::kPermissionDenied) return allowed.error();
  }
  return check_room(request.checkpoint(), owner,
                    preflight::preflight_request(found, request, context.config), found.findings);
}

void add_use(const preflight::Examination& found, proto::CheckReply& reply) {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [id, allocation] : found.job.allocations()) {
    if (!allocation.host_node) bytes[to_bytes(allocation.gpu)] += allocation.size_bytes;
  }
  if (found.driver_alone) {
    for (const auto& [gpu, vram] : found.driver_alone->vram) bytes[to_bytes(gpu)] += vram;
  }
  for (const auto& [uuid, vram] : bytes) {
    proto::GpuUse& use = *reply.add_gpus();
    use.set_uuid(uuid);
    use.set_vram_bytes(vram);
    reply.set_vram_bytes(reply.vram_bytes() + vram);
  }
}

}  // namespace

Result<proto::Envelope> check(worker::WorkerContext& context, const proto::MigrateRequest& request,
                              const std::vector<pid_t>& pids,
                              const preflight::SuspendedJob* suspended) {
  GCR_TRY(preflight::check_accepted(request));
  if (!request.has_checkpoint()) GCR_TRY(control::Endpoint::parse(request.destination()));
  journal::ProcessIds processes;
  for (const pid_t pid : pids) {
    const auto allowed = context.permissions.check_process(pid);
    if (!allowed && allowed.error().code() == Code::kPermissionDenied) return allowed.error();
    if (!allowed || suspended != nullptr) continue;
    *processes.Add() = id_of(pid, allowed->start_time);
  }
  preflight::Examination found = preflight::examine(request, context.config, pids, suspended);
  // Releases the doors for other agents.
  for (preflight::Member& member : found.members) member.access.reset();
  preflight::add_admission_finding(
      worker::on_io(context.io,
                    context.daemon.check_admission(journal::Began::SOURCE,
                                                   context.channel.peer().common_name, processes)),
      found.findings);
  proto::Envelope envelope;
  proto::CheckReply& reply = *envelope.mutable_check_reply();
  if (found.findings.has_blocker()) {
    found.findings.take(
        {findings::make_finding(findings::kDestinationNotAsked, findings::Side::kDestination,
                                "it was not asked about the process")});
  } else {
    GCR_TRY(compare_with_target(context, request, found, reply));
  }
  std::vector<proto::Finding> findings = found.findings.release();
  std::ranges::stable_partition(findings, findings::is_blocker);
  for (proto::Finding& finding : findings) *reply.add_findings() = std::move(finding);
  add_use(found, reply);
  for (preflight::Member& member : found.members) *reply.add_members() = std::move(member.facts);
  *reply.mutable_source() = std::move(found.host.facts);
  return envelope;
}

}  // namespace gcr::migration::source

namespace gcr::migration {

Result<proto::Envelope> run_check(worker::WorkerContext& context,
                                  const proto::MigrateRequest& request) {
  for (const auto end = std::chrono::steady_clock::now() + kTransience;;) {
    const std::vector<pid_t> pids = procfs::tree(request.pid());
    journal::ProcessIds examined;
    for (const pid_t pid : pids) {
      const auto stat = procfs::read_stat(pid);
      *examined.Add() = id_of(pid, stat ? stat->start_time : 0);
    }
    auto answer = source::check(context, request, pids, nullptr);
    const bool refused =
        answer && std::ranges::any_of(answer->check_reply().findings(), findings::is_blocker);
    if (!refused || std::chrono::steady_clock::now() >= end || !any_member_ends(examined))
      return answer;
  }
}

std::vector<std::string> host_problems(const worker::Config& config) {
  std::vector<std::string> problems;
  if (const auto driver = device::load_drivers(config.sysfs); !driver) {
    problems.push_back(driver.error().message());
  }
  if (const Status usable = criu::check(config.criu); !usable) {
    problems.push_back(usable.error().message());
  }
  return problems;
}

}  // namespace gcr::migration

// Preflight alone: what a migration would find at both sides, without anything that a migration
// does.
#include <algorithm>
#include <map>

#include "migrate-agent/peer/agent_target.h"
#include "migrate-agent/procfs/procfs.h"
#include "migrate-agent/roles/examination.h"
#include "migrate-agent/roles/roles.h"

namespace gcr::agent {

using asio::awaitable;

namespace {

/// What the destination says of it, on a connection for this alone.
Result<proto::PreflightReply> ask_destination(WorkerContext& context,
                                              const proto::PreflightRequest& request,
                                              const std::string& destination) {
  GCR_ASSIGN(auto endpoint, control::Endpoint::parse(destination));
  AgentTarget target(context.io,
                     {std::move(endpoint), context.tls, std::nullopt, context.config.host,
                      context.config.peer_silence()},
                     to_uuid(request.migration_id()), [](const Error&) {});
  return target.preflight(request);
}

/// The finding for a destination that could not be asked, or would not answer.
proto::Finding unheard(const Error& error) {
  const bool silent = error.code() == Code::kUnavailable || error.code() == Code::kTimeout;
  return preflight::make_finding(silent ? "destination-unreachable" : "destination-refused",
                                 preflight::Side::kDestination, error.message());
}

/// Adds what the destination says.
awaitable<void> compare_with_destination(WorkerContext& context,
                                         const proto::MigrateRequest& request, Examination& found,
                                         proto::CheckReply& reply) {
  proto::PreflightRequest question = preflight_request(found, request, context.config);
  question.set_only(true);
  question.set_migration_id(to_bytes(Uuid::random()));
  question.set_ordered_by(context.channel.peer().common_name);
  auto answer = co_await offload(
      context.blocking, [&] { return ask_destination(context, question, request.destination()); });
  if (!answer) {
    found.findings.take({unheard(answer.error())});
    co_return;
  }
  *reply.mutable_destination() = std::move(*answer->mutable_host());
  found.findings.take({answer->findings().begin(), answer->findings().end()});
}

void add_use(const Inventory& inventory, proto::CheckReply& reply) {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [id, allocation] : inventory) {
    bytes[to_bytes(allocation.gpu)] += allocation.size_bytes;
    reply.set_vram_bytes(reply.vram_bytes() + allocation.size_bytes);
  }
  for (const auto& [uuid, vram] : bytes) {
    proto::GpuUse& use = *reply.add_gpus();
    use.set_uuid(uuid);
    use.set_vram_bytes(vram);
  }
}

}  // namespace

void note_room(const Status& answer, preflight::Findings& findings) {
  if (answer) return;
  const Code code = answer.error().code();
  if (code == Code::kRefused) findings.add("in-migration", answer.error().message());
  if (code == Code::kResourceExhausted) {
    findings.add("too-many-migrations", answer.error().message());
  }
}

awaitable<Result<proto::Envelope>> run_check(WorkerContext& context,
                                             proto::MigrateRequest request) {
  GCR_CO_TRY(control::Endpoint::parse(request.destination()));
  const auto allowed = context.permissions.check_process(request.pid());
  if (!allowed && allowed.error().code() == Code::kPermissionDenied) co_return allowed.error();
  std::optional<Examination> found;
  const Status looked = co_await offload(context.blocking, [&]() -> Status {
    found.emplace(examine(request, context.config, procfs::tree(request.pid())));
    found->access.reset();  // others may come
    return {};
  });
  GCR_CO_TRY(looked);
  journal::ProcessIds processes;
  if (allowed) {
    processes.Add()->set_pid(request.pid());
    processes[0].set_start_time(allowed->start_time);
  }
  note_room(co_await context.daemon.ask_room(journal::Began::SOURCE,
                                             context.channel.peer().common_name, processes),
            found->findings);
  proto::Envelope envelope;
  proto::CheckReply& reply = *envelope.mutable_check_reply();
  if (found->findings.has_blocker()) {
    found->findings.take(
        {preflight::make_finding("destination-not-asked", preflight::Side::kDestination,
                                 "it was not asked about the process")});
  } else {
    co_await compare_with_destination(context, request, *found, reply);
  }
  std::vector<proto::Finding> findings = found->findings.release();
  std::ranges::stable_partition(findings, preflight::is_blocker);
  for (proto::Finding& finding : findings) *reply.add_findings() = std::move(finding);
  add_use(found->inventory, reply);
  reply.mutable_members()->Assign(found->members.begin(), found->members.end());
  *reply.mutable_source() = std::move(found->host.facts);
  co_return envelope;
}

}  // namespace gcr::agent

// The source's steps before anything is copied: examination, preflight, preparation.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"

namespace gcr::migration::source {
namespace {

void report_link(const PreparedTarget& prepared, proto::MigrateReport& report) {
  const proto::PrepareReply& reply = prepared.reply;
  for (const std::string& note : reply.notes()) report.add_notes(note);
  if (reply.transport() == proto::TRANSPORT_INVALID) return;  // a store has none
  report.set_transport(reply.transport() == proto::TRANSPORT_RDMA ? "rdma" : "tcp");
  report.set_transport_reason(reply.transport_reason());
  report.set_encrypted(reply.encrypted());
  report.set_lanes(reply.lanes());
  report.set_clock_offset_ms(prepared.clock_offset_ms);
  report.set_clock_error_ms(prepared.clock_error_ms);
}

}  // namespace

Result<preflight::Examination> examine(Claimed& claimed) {
  auto& [run, find_target, request] = claimed.course;
  const worker::Phases::Timer timer(run.phases, "course", "preflight");
  GCR_TRY(preflight::check_accepted(request));
  run.console.tell("preflight", fmt::format("examining process {}", request.pid()));
  auto found = run.phases.time("process", "examine", [&] {
    return preflight::examine(request, run.worker.config, pids_of(claimed.members),
                              claimed.suspended ? &*claimed.suspended : nullptr);
  });
  if (!found.members.empty()) {
    run.began.set_command(journal::short_command(found.members.front().facts.command()));
  }
  // Blockers end the migration before the destination receives data of the process.
  std::vector<proto::Finding> findings = found.findings.list();
  if (claimed.target == nullptr) std::erase_if(findings, std::not_fn(findings::is_about_gpus));
  GCR_TRY(judge(run, findings));
  Members living;
  for (Member& member : claimed.members) {
    const auto at = std::ranges::find(found.members, member.pid(), &preflight::Member::pid);
    if (at == found.members.end()) continue;
    member.confinement = at->confinement;
    living.push_back(std::move(member));
  }
  claimed.members = std::move(living);
  *run.began.mutable_members() = ids_of(claimed.members);
  return found;
}

Status preflight(const Claimed& claimed, const preflight::Examination& found) {
  auto& [run, find_target, request] = claimed.course;
  const worker::Phases::Timer timer(run.phases, "course", "preflight at both sides");
  proto::PreflightRequest asked = preflight_request(found, request, run.worker.config);
  asked.set_migration_id(to_bytes(run.migration));
  asked.set_ordered_by(run.began.ordered_by());
  GCR_ASSIGN(const proto::PreflightReply reply, claimed.target->preflight(asked));
  GCR_TRY(judge(run, {reply.findings().begin(), reply.findings().end()}));
  // The process was examined by PID. It is the claimed one, unless that was reaped.
  if (claimed.root().has_ended()) {
    return Error(Code::kNotFound, "the process ended while it was examined");
  }
  for (const Member& member : claimed.members) {
    const auto now = procfs::read_stat(member.pid());
    if (!now || now->start_time == member.process.start_time()) continue;
    return Error(Code::kNotFound,
                 fmt::format("process {} ended while it was examined, and another process now has "
                             "its PID",
                             member.pid()));
  }
  return fault::point("source.preflighted");
}

Result<preflight::Examination> agree(Claimed& claimed) {
  for (const auto end = Clock::now() + kTransience;;) {
    auto found = examine(claimed);
    if (found) {
      const Status agreed = preflight(claimed, *found);
      if (!agreed) found = agreed.error();
    }
    if (found || !is_transient(claimed, found.error(), end)) return found;
    GCR_TRY(claimed.course.run.worker.cancellation.check());
    while (claimed.members.size() > 1) claimed.members.pop_back();
    GCR_TRY(claim_for_target(claimed));
  }
}

/// The default of --max-layer.
constexpr std::uint64_t kMaxLayerBytes = kGiB;

Result<Images> prepare_images(Begun& begun) {
  auto& [run, find_target, request] = begun.course;
  const worker::Config& config = run.worker.config;
  GCR_ASSIGN(auto scratch, images::ScratchDirectory::create(config.scratch_of(run.migration)));
  GCR_ASSIGN(auto outgoing, OutgoingImages::create(config.criu, begun.processes, scratch.path(),
                                                   permissions(begun.course), request,
                                                   begun.resident_bytes, begun.criu_plugin));
  Images images{std::move(scratch), std::move(outgoing)};
  if (begun.in_container()) {
    const pid_t init = run.began.container().init().pid();
    GCR_ASSIGN(images.layers,
               OutgoingLayers::open(init, request.max_layer_bytes() != 0 ? request.max_layer_bytes()
                                                                         : kMaxLayerBytes));
  }
  return images;
}

Result<PreparedTarget> prepare_target(const Begun& begun, Buffers buffers) {
  auto& [run, find_target, asked] = begun.course;
  const worker::Config& config = run.worker.config;
  proto::PrepareRequest request;
  request.set_lanes(asked.lanes() != 0 ? asked.lanes() : config.lanes);
  request.set_transport(asked.transport());
  request.set_plaintext(asked.plaintext());
  *request.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  request.set_digest_key(begun.key.data(), begun.key.size());
  request.set_no_prefill(asked.no_prefill());
  *request.mutable_buffers() = std::move(buffers);
  GCR_ASSIGN(PreparedTarget prepared, begun.claimed.target->prepare(request));
  report_link(prepared, run.report);
  return prepared;
}

Result<std::unique_ptr<Prepared>> prepare(Begun& begun) {
  Run& run = begun.course.run;
  Target& target = *begun.claimed.target;
  const worker::Phases::Timer timer(run.phases, "course", "prepare");
  run.console.tell("prepare", fmt::format("preparing {} buffers at {}",
                                          begun.job.allocations().size(), target.name()));
  GCR_ASSIGN(Images images, prepare_images(begun));
  GCR_ASSIGN(auto vram, take_vram(begun));
  GCR_ASSIGN(proto::BuffersRequest found, follow_allocations(begun, *vram));
  GCR_ASSIGN(const PreparedTarget ready, prepare_target(begun, std::move(*found.mutable_added())));
  GCR_TRY(vram->outgoing.assign(ready.reply.regions()));
  std::string kind = kind_of_program(run.began.command());
  SteadyDowntime steady = expect_downtime(run.worker.config.state_dir, kind, ready.reply.prefill());
  if (const auto& alone = begun.driver_alone) {
    steady = {.control_ms = in_milliseconds(alone->downtime), .is_least = false};
  }
  run.console.set_steady_downtime(steady);
  GCR_TRY(fault::point("source.prepared"));
  // Last, since a Prepared ends the target, which a failed course tells so.
  mover::OutgoingVram& outgoing = vram->outgoing;
  return std::unique_ptr<Prepared>(
      new Prepared{begun, std::move(vram), std::move(images),
                   Precopy(outgoing, target, run.phases, run.console.meter(), run.console.limits()),
                   std::move(kind), steady});
}

}  // namespace gcr::migration::source

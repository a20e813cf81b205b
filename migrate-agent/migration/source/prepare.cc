// The source's steps before anything is copied: it looks at the process, asks the target, and makes
// everything ready on both sides.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/source/transient.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/transfer/negotiation/offer.h"

namespace gcr::migration::source {
namespace {

void report_link(const Prepared& prepared, proto::MigrateReport& report) {
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

Status examine(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "preflight");
  GCR_TRY(preflight::check_accepted(c.request));
  Subject& subject = c.subject;
  c.run.console.tell("preflight", fmt::format("examining process {}", c.request.pid()));
  subject.found.emplace(c.run.phases.time("process", "examine", [&] {
    return preflight::examine(c.request, c.run.worker.config, journal::pids_of(subject.members),
                              subject.suspended ? &*subject.suspended : nullptr);
  }));
  // The destination learns nothing of a process that cannot be moved.
  std::vector<proto::Finding> findings = subject.found->findings.list();
  if (c.target == nullptr) std::erase_if(findings, std::not_fn(findings::is_about_gpus));
  GCR_TRY(judge(c.run, findings));
  subject.limits = subject.found->members.front().limits();
  for (std::size_t i = 0; i < subject.found->pids.size(); ++i) {
    subject.confinements[subject.found->pids[i]] = subject.found->confinements[i];
  }
  // From here on members have the order of the preflight; those that have ended are none.
  journal::ProcessIds living;
  for (const journal::ProcessId& member : subject.members) {
    if (std::ranges::find(subject.found->pids, member.pid()) == subject.found->pids.end()) continue;
    *living.Add() = member;
  }
  subject.members = std::move(living);
  return {};
}

Status preflight(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "preflight at both sides");
  proto::PreflightRequest request =
      preflight_request(*c.subject.found, c.request, c.run.worker.config);
  request.set_migration_id(to_bytes(c.run.migration));
  request.set_ordered_by(c.run.worker.channel.peer().common_name);
  GCR_ASSIGN(const proto::PreflightReply reply, c.target->preflight(request));
  GCR_TRY(judge(c.run, {reply.findings().begin(), reply.findings().end()}));
  // What was examined by its number was the claimed process, if that has not been reaped.
  if (c.subject.handle->has_ended()) {
    return Error(Code::kNotFound, "the process ended while it was examined");
  }
  for (const journal::ProcessId& member : c.subject.members) {
    const auto now = procfs::read_stat(member.pid());
    if (!now || now->start_time == member.start_time()) continue;
    return Error(Code::kNotFound,
                 fmt::format("process {} ended while it was examined, and another one has its "
                             "number",
                             member.pid()));
  }
  return fault::point("source.preflighted");
}

Status agree(Course& c) {
  for (const auto end = Clock::now() + kTransience;;) {
    const Status examined = examine(c);
    const Status agreed = examined ? preflight(c) : examined;
    if (agreed || !is_transient(c, agreed.error(), end)) return agreed;
    GCR_TRY(c.run.worker.cancellation.check());
    c.subject.found.reset();  // it holds the doors
    c.subject.confinements.clear();
    c.subject.members.DeleteSubrange(1, c.subject.members.size() - 1);
    GCR_TRY(claim_for_target(c));
  }
}

Status prepare_images(Course& c) {
  const worker::Config& config = c.run.worker.config;
  GCR_ASSIGN(c.copying.scratch, images::ScratchDirectory::create(config.runtime_dir / "outgoing" /
                                                                 c.run.migration.to_string()));
  GCR_ASSIGN(c.copying.images,
             OutgoingImages::create(config.criu, *c.subject.processes, c.copying.scratch->path(),
                                    permissions(c), c.request, c.subject.resident_bytes,
                                    c.subject.criu_plugin));
  return {};
}

Result<Prepared> prepare_target(Course& c, const DigestSecret& key, Buffers buffers) {
  const proto::MigrateRequest& asked = c.request;
  const worker::Config& config = c.run.worker.config;
  proto::PrepareRequest request;
  request.set_lanes(asked.lanes() != 0 ? asked.lanes() : config.lanes);
  request.set_transport(asked.transport());
  request.set_plaintext(asked.plaintext());
  *request.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  request.set_digest_key(key.data(), key.size());
  request.set_no_prefill(asked.no_prefill());
  *request.mutable_buffers() = std::move(buffers);
  GCR_ASSIGN(Prepared prepared, c.target->prepare(request));
  report_link(prepared, c.run.report);
  return prepared;
}

Status prepare(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "prepare");
  Copying& copying = c.copying;
  c.run.console.tell("prepare", fmt::format("preparing {} buffers at {}",
                                            c.subject.job.allocations().size(), c.target->name()));
  const DigestSecret key = c.target->digest_key();
  GCR_TRY(prepare_images(c));
  copying.vram.emplace(c.subject.driver, digest::DigestKey::expand(key));
  proto::BuffersRequest found;
  GCR_TRY(follow_allocations(c, found));
  GCR_TRY(start_keeper(c));
  GCR_ASSIGN(const Prepared prepared, prepare_target(c, key, std::move(*found.mutable_added())));
  GCR_TRY(copying.vram->assign(prepared.reply.regions()));
  c.account.kind = kind_of_program(c.run.log->journal().began().command());
  c.account.steady =
      expect_downtime(c.run.worker.config.state_dir, c.account.kind, prepared.reply.prefill());
  if (const auto& alone = c.subject.driver_alone) {
    c.account.steady = {.beside_ms = in_milliseconds(alone->downtime), .is_least = false};
  }
  c.run.console.set_steady_downtime(c.account.steady);
  copying.precopy.emplace(*copying.vram, *c.target, c.run.phases, c.run.console.meter(),
                          c.run.console.limits());
  return fault::point("source.prepared");
}

}  // namespace gcr::migration::source

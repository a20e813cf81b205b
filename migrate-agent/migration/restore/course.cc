// A restore of a checkpoint: a migration whose source is a store. The agent connects to itself as
// the destination, which makes the same checks as in any migration.
#include <fmt/format.h>

#include <chrono>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/migration/engine/run.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/restore/checks.h"
#include "migrate-agent/migration/restore/stored_job.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/checkpoint_target.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "src/base/log.h"
#include "src/control/wire.h"
#include "store/upkeep.h"

namespace gcr::migration {
namespace {

/// The order of an operator, and the state of its execution.
struct Loading {
  Run run;
  proto::LoadRequest request;
};

/// A checkpoint that the operator may restore.
struct Opened {
  store::Directory directory;
  StoredJob job;
};

/// The connection to this agent as the destination.
struct Connected {
  Loading& loading;
  const Opened& checkpoint;
  AgentTarget target;
  worker::Cancellation::Registration interrupting{};
};

/// The target has allocated memory.
struct Prepared {
  Connected& begun;
  google::protobuf::RepeatedPtrField<proto::BufferRegion> regions;
};

Result<Opened> open(Loading& loading) {
  auto& [run, asked] = loading;
  const worker::Phases::Timer timer(run.phases, "course", "open");
  GCR_ASSIGN(const store::Owner owner, check_owner(run.worker, asked.directory()));
  GCR_ASSIGN(auto directory, store::Directory::open(asked.directory(), owner));
  GCR_ASSIGN(const store::SignerRule rule, signer_rule(run.worker.config));
  GCR_ASSIGN(proto::Manifest manifest,
             store::find_manifest(directory, asked.name(), run.worker.config.tls, rule));
  if (manifest.protocol_version() > control::kProtocolVersion) {
    return Error(Code::kUnsupported,
                 fmt::format("the checkpoint {} was taken by a newer release", manifest.name()));
  }
  GCR_TRY(check_rights(run.worker, manifest));
  if (!asked.copy()) GCR_TRY(check_originals(manifest));
  run.console.tell("open", fmt::format("loading {}/{}", asked.directory(), manifest.name()));
  run.report.set_vram_bytes(manifest.vram_bytes());
  run.report.set_buffers(static_cast<std::uint64_t>(manifest.buffers_size()));
  run.report.set_processes(static_cast<std::uint32_t>(manifest.members_size()));
  run.began.set_store(asked.directory());
  run.began.set_checkpoint(manifest.name());
  run.began.set_once(asked.once());
  run.began.set_uid(owner.uid);
  run.began.set_gid(owner.gid);
  run.began.set_command(journal::short_command(manifest.job().members(0).command()));
  GCR_ASSIGN(auto job, StoredJob::open(directory, std::move(manifest)));
  return Opened{std::move(directory), std::move(job)};
}

/// The preflight request for this job, as if it had been stopped since the checkpoint.
proto::PreflightRequest question(const Loading& loading, const StoredJob& job) {
  const auto& [run, order] = loading;
  const worker::Config& config = run.worker.config;
  proto::PreflightRequest asked = job.manifest().job();
  asked.set_migration_id(to_bytes(run.migration));
  asked.set_ordered_by(run.began.ordered_by());
  asked.set_source_agent(config.advertise.empty() ? fmt::format(":{}", config.listen.port)
                                                  : config.advertise);
  asked.set_no_prefill(order.no_prefill());
  asked.clear_suspended();  // the restored job runs, even if it was suspended
  asked.set_transport(proto::TRANSPORT_TCP);
  asked.set_plaintext(false);
  asked.set_only(false);
  *asked.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  *asked.mutable_device_map() = order.device_map();
  asked.clear_container();
  if (order.has_container()) *asked.mutable_container() = order.container();
  asked.clear_pids();
  // A restore has no alternative host, so other processes on its GPUs are only noted.
  asked.clear_accepted();
  asked.add_accepted(std::string(findings::kind_of(findings::kBusyGpu).id));
  // Memory files come from the checkpoint, also if files with the same names exist now.
  asked.clear_boot_id();
  asked.mutable_host()->set_unix_ns(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  return asked;
}

/// Begins the journal; from here on the restore survives this worker.
Status begin_to_restore(Connected& begun) {
  auto& [run, order] = begun.loading;
  // No process here is claimed, but the daemon has to register the journal.
  GCR_TRY(worker::on_io(
      run.worker.io, run.worker.daemon.claim_processes(run.migration, {}, run.began.ordered_by())));
  run.began.set_peer(begun.target.name());
  run.began.set_peer_name(begun.target.common_name());
  GCR_TRY(begin_journal(run));
  GCR_TRY(announce(run));
  if (order.once()) {
    GCR_TRY(
        store::begin_restore(begun.checkpoint.directory, run.began.checkpoint(), run.migration));
  }
  return fault::point("source.load.began");
}

Status preflight(Connected& begun) {
  Run& run = begun.loading.run;
  const worker::Phases::Timer timer(run.phases, "course", "preflight");
  GCR_ASSIGN(const proto::PreflightReply reply,
             begun.target.preflight(question(begun.loading, begun.checkpoint.job)));
  return judge(run, {reply.findings().begin(), reply.findings().end()});
}

Result<std::unique_ptr<Connected>> connect(Loading& loading, const Opened& checkpoint) {
  Run& run = loading.run;
  GCR_ASSIGN(const std::string address, own_address(run.worker));
  GCR_ASSIGN(auto agent, run.worker.agent_at(address));
  worker::Cancellation& cancellation = run.worker.cancellation;
  auto begun = std::unique_ptr<Connected>(new Connected{
      loading, checkpoint,
      AgentTarget(run.worker.io, std::move(agent), run.migration,
                  [&cancellation](const Error& lost) { cancellation.request(lost); })});
  begun->interrupting = interrupt_when_cancelled(run, begun->target);
  return begun;
}

Result<Prepared> prepare(Connected& begun) {
  auto& [run, order] = begun.loading;
  const proto::Manifest& manifest = begun.checkpoint.job.manifest();
  const worker::Phases::Timer timer(run.phases, "course", "prepare");
  proto::PrepareRequest request;
  *request.mutable_buffers() = manifest.buffers();
  request.set_lanes(run.worker.config.lanes);
  request.set_transport(proto::TRANSPORT_TCP);
  // VRAM is verified with the digests from the time of the checkpoint, which have this key.
  request.set_digest_key(manifest.digest_key());
  request.set_no_prefill(order.no_prefill());
  *request.mutable_offer() = transfer::data_offer(run.worker.config.unencrypted_data);
  GCR_ASSIGN(PreparedTarget ready, begun.target.prepare(request));
  GCR_TRY(fault::point("source.load.prepared"));
  return Prepared{begun, std::move(*ready.reply.mutable_regions())};
}

/// After the images: sends the memory files that the destination wants.
Status send_files(Connected& begun, images::ImageSender& sender) {
  const StoredJob& job = begun.checkpoint.job;
  if (job.manifest().files().files().empty()) return {};
  proto::CarryRequest request = job.manifest().files();
  request.clear_boot_id();
  GCR_ASSIGN(const proto::CarryReply reply, begun.target.carry(request));
  for (const std::uint32_t place : reply.wanted()) {
    GCR_TRY(job.send_image(memory_files::image_name(place), sender));
  }
  return {};
}

Result<Sent> send(Prepared& prepared) {
  auto& [begun, regions] = prepared;
  Run& run = begun.loading.run;
  const StoredJob& job = begun.checkpoint.job;
  const worker::Phases::Timer timer(run.phases, "course", "read");
  run.console.tell("read",
                   fmt::format("reading {} of VRAM", format_bytes(run.report.vram_bytes())));
  run.console.begin_copying(begun.target.channel());
  GCR_ASSIGN(images::ImageSender* const sender,
             begun.target.image_sender(store::Compression::kNone, 0));
  Sent sent;
  GCR_TRY(send_both(
      begun.target,
      [&] {
        return run.phases.time("vram", "read",
                               [&] { return job.send_vram(regions, begun.target); });
      },
      [&] {
        return run.phases.time("images", "read", [&]() -> Status {
          GCR_TRY(job.send_images(*sender));
          return send_files(begun, *sender);
        });
      }));
  job.add_digests(sent.request);
  GCR_ASSIGN(const images::SentImages images, sender->finish());
  add_files(images, sent.request);
  *sent.request.mutable_members() = job.manifest().members();
  *sent.request.mutable_layers() = job.manifest().layers();
  run.report.set_image_bytes(images.raw_bytes);
  GCR_TRY(fault::point("source.load.sent"));
  return sent;
}

Result<Vote> ask_for_vote(Connected& begun, const Sent& sent) {
  Run& run = begun.loading.run;
  const worker::Phases::Timer timer(run.phases, "course", "restore");
  run.console.tell("restore", "restoring");
  GCR_TRY(await_vote(run));
  GCR_ASSIGN(Vote vote, migration::ask_for_vote(run, begun.target, sent));
  GCR_TRY(fault::point("source.load.voted"));
  GCR_TRY(run.worker.cancellation.check());
  return vote;
}

Status commit(Connected& begun, const Vote& vote) {
  Run& run = begun.loading.run;
  GCR_ASSIGN(const proto::CommitReply confirmed,
             migration::commit(run, begun.target, vote, {}, "; the agent keeps asking"));
  run.report.set_destination_pid(confirmed.pid());
  run.report.set_checkpoint(run.began.checkpoint());
  return {};
}

void load(Loading& loading) {
  Run& run = loading.run;
  auto opened = first(run, [&loading] { return open(loading); });
  auto begun = then(run, opened, [&loading](const Opened& job) { return connect(loading, job); });
  auto prepared = then(run, begun, [&run](auto& job) -> Result<Prepared> {
    GCR_TRY(preflight(*job));
    GCR_TRY(run.worker.cancellation.check());
    GCR_TRY(begin_to_restore(*job));
    return prepare(*job);
  });
  auto sent = then(run, prepared, send);
  auto vote = then(run, sent, [&begun](const Sent& all) { return ask_for_vote(**begun, all); });
  const Status loaded =
      vote ? commit(**begun, *vote)
           : give_up(run, begun ? &(*begun)->target : nullptr, reason_of(run, vote.error()));
  run.report.set_migrated(loaded.has_value());
  conclude(run, loaded, "restore of a checkpoint failed");
}

}  // namespace

asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request) {
  Console console(context, proto::MigrateRequest());
  Loading loading{{context, console}, std::move(request)};
  introduce(loading.run);
  loading.run.began.set_loads(true);
  spdlog::info("restoring a checkpoint from {}", control::printable(loading.request.directory()));
  co_await console.run([&loading] { load(loading); });
}

}  // namespace gcr::migration

// The loading of a checkpoint: a migration whose source is a store. The agent connects to itself as
// the destination, which trusts this side no more than another agent; what it restores is checked
// as in any migration.
#include <fmt/format.h>

#include <chrono>
#include <future>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/migration/engine/run.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "migrate-agent/migration/restore/checks.h"
#include "migrate-agent/migration/restore/stored_job.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/signers.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/transfer/negotiation/offer.h"
#include "src/base/log.h"
#include "src/control/wire.h"
#include "store/upkeep.h"

namespace gcr::migration {
namespace {

using Clock = worker::Phases::Clock;

/// Members are destroyed in reverse.
struct Loading {
  Run run;
  proto::LoadRequest request;
  journal::Began began{};
  std::optional<store::Directory> directory{};
  std::optional<StoredJob> job{};
  std::unique_ptr<AgentTarget> target{};
  google::protobuf::RepeatedPtrField<proto::BufferRegion> regions{};
  proto::RestoreRequest restore{};
  worker::Cancellation::Registration interrupting{};
};

Status open(Loading& l) {
  const worker::Phases::Timer timer(l.run.phases, "course", "open");
  const proto::LoadRequest& asked = l.request;
  GCR_ASSIGN(const store::Owner owner, check_owner(l.run.worker, asked.directory()));
  GCR_ASSIGN(l.directory, store::Directory::open(asked.directory(), owner));
  GCR_ASSIGN(const store::SignerRule rule, signer_rule(l.run.worker.config));
  GCR_ASSIGN(proto::Manifest manifest,
             store::find_manifest(*l.directory, asked.name(), l.run.worker.config.tls, rule));
  if (manifest.protocol_version() > control::kProtocolVersion) {
    return Error(Code::kUnsupported,
                 fmt::format("the checkpoint {} was taken by a newer release", manifest.name()));
  }
  GCR_TRY(check_rights(l.run.worker, manifest));
  if (!asked.copy()) GCR_TRY(check_originals(manifest));
  l.run.console.tell("open", fmt::format("loading {}/{}", asked.directory(), manifest.name()));
  l.run.report.set_vram_bytes(manifest.vram_bytes());
  l.run.report.set_buffers(static_cast<std::uint64_t>(manifest.buffers_size()));
  l.run.report.set_processes(static_cast<std::uint32_t>(manifest.members_size()));
  l.began.set_store(asked.directory());
  l.began.set_checkpoint(manifest.name());
  l.began.set_once(asked.once());
  l.began.set_uid(owner.uid);
  l.began.set_gid(owner.gid);
  l.began.set_command(journal::short_command(manifest.job().members(0).command()));
  GCR_ASSIGN(l.job, StoredJob::open(*l.directory, std::move(manifest)));
  return {};
}

/// What a source would ask now of a job that stands still since the checkpoint.
proto::PreflightRequest question(const Loading& l) {
  const worker::Config& config = l.run.worker.config;
  proto::PreflightRequest asked = l.job->manifest().job();
  asked.set_migration_id(to_bytes(l.run.migration));
  asked.set_ordered_by(l.run.worker.channel.peer().common_name);
  asked.set_source_agent(config.advertise.empty() ? fmt::format(":{}", config.listen.port)
                                                  : config.advertise);
  asked.set_no_prefill(l.request.no_prefill());
  asked.clear_suspended();  // what is restored runs
  asked.set_transport(proto::TRANSPORT_TCP);
  asked.set_plaintext(false);
  asked.set_only(false);
  *asked.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  *asked.mutable_device_map() = l.request.device_map();
  asked.clear_pids();
  // A restore has no other place to go: company on its GPUs is a note.
  asked.clear_accepted();
  asked.add_accepted(std::string(findings::kind_of(findings::kBusyGpu).id));
  // Files in memory come from the checkpoint, whatever is there now under their names.
  asked.clear_boot_id();
  asked.mutable_host()->set_unix_ns(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  return asked;
}

Status preflight(Loading& l) {
  const worker::Phases::Timer timer(l.run.phases, "course", "preflight");
  GCR_ASSIGN(const std::string address, own_address(l.run.worker));
  GCR_ASSIGN(auto agent, l.run.worker.agent_at(address));
  l.target = std::make_unique<AgentTarget>(l.run.worker.io, std::move(agent), l.run.migration,
                                           [&cancellation = l.run.worker.cancellation](
                                               const Error& lost) { cancellation.request(lost); });
  l.interrupting = l.run.worker.cancellation.on_request(
      [&l] { l.target->interrupt(l.run.worker.cancellation.check().error()); });
  GCR_ASSIGN(const proto::PreflightReply reply, l.target->preflight(question(l)));
  return judge(l.run, {reply.findings().begin(), reply.findings().end()});
}

/// From here on the loading survives this worker.
Status begin(Loading& l) {
  // No process here is claimed, but the daemon has to know of the journal.
  GCR_TRY(worker::on_io(l.run.worker.io, l.run.worker.daemon.claim_processes(
                                             l.run.migration, {}, l.began.ordered_by())));
  l.began.set_peer(l.target->name());
  l.began.set_peer_name(l.target->common_name());
  GCR_TRY(begin_journal(l.run, l.began));
  GCR_TRY(announce(l.run));
  if (l.request.once()) {
    GCR_TRY(store::begin_restore(*l.directory, l.began.checkpoint(), l.run.migration));
  }
  return fault::point("source.load.began");
}

Status prepare(Loading& l) {
  const worker::Phases::Timer timer(l.run.phases, "course", "prepare");
  proto::PrepareRequest request;
  *request.mutable_buffers() = l.job->manifest().buffers();
  request.set_lanes(l.run.worker.config.lanes);
  request.set_transport(proto::TRANSPORT_TCP);
  // VRAM is compared with what it was when the checkpoint was taken.
  request.set_digest_key(l.job->manifest().digest_key());
  request.set_no_prefill(l.request.no_prefill());
  *request.mutable_offer() = transfer::data_offer(l.run.worker.config.unencrypted_data);
  GCR_ASSIGN(Prepared prepared, l.target->prepare(request));
  l.regions = std::move(*prepared.reply.mutable_regions());
  return fault::point("source.load.prepared");
}

/// After the images, as in a migration: which files in memory are wanted.
Status send_files(Loading& l, images::ImageSender& sender) {
  if (l.job->manifest().files().files().empty()) return {};
  proto::CarryRequest request = l.job->manifest().files();
  request.clear_boot_id();
  GCR_ASSIGN(const proto::CarryReply reply, l.target->carry(request));
  for (const std::uint32_t place : reply.wanted()) {
    GCR_TRY(l.job->send_image(memory_files::image_name(place), sender));
  }
  return {};
}

/// VRAM, and images concurrently: what fails ends the other.
Status send_all(Loading& l, images::ImageSender& sender) {
  const auto in_phase = [&l](const char* track, const auto& work) {
    const Status done = worker::guarded([&] { return l.run.phases.time(track, "read", work); });
    if (!done) l.target->channel().cancel();
    return done;
  };
  auto vram = std::async(std::launch::async, [&l, &in_phase] {
    return in_phase("vram", [&l] { return l.job->send_vram(l.regions, *l.target); });
  });
  const Status images = in_phase("images", [&]() -> Status {
    GCR_TRY(l.job->send_images(sender));
    return send_files(l, sender);
  });
  const Status sent = vram.get();
  // What was ended by the other says no more than that.
  const bool ended = !sent && sent.error().code() == Code::kCancelled;
  return sent || (ended && !images) ? images : sent;
}

Status send(Loading& l) {
  const worker::Phases::Timer timer(l.run.phases, "course", "read");
  l.run.console.tell("read",
                     fmt::format("reading {} of VRAM", format_bytes(l.run.report.vram_bytes())));
  l.run.console.begin_copying(l.target->channel());
  GCR_ASSIGN(images::ImageSender* const sender,
             l.target->image_sender(store::Compression::kNone, 0));
  GCR_TRY(send_all(l, *sender));
  l.job->add_digests(l.restore);
  GCR_ASSIGN(const images::SentImages sent, sender->finish());
  add_files(sent, l.restore);
  l.run.report.set_image_bytes(sent.raw_bytes);
  return fault::point("source.load.sent");
}

Status ask_for_vote(Loading& l) {
  const worker::Phases::Timer timer(l.run.phases, "course", "restore");
  *l.restore.mutable_members() = l.job->manifest().members();
  l.run.console.tell("restore", "restoring");
  GCR_TRY(await_vote(l.run));
  GCR_TRY(migration::ask_for_vote(l.run, *l.target, l.restore));
  GCR_TRY(fault::point("source.load.voted"));
  return l.run.worker.cancellation.check();
}

Error went_back(Loading& l, const Error& cause, const Status& undone) {
  if (!undone) l.run.report.set_recovering(true);
  return cause;
}

Error give_up(Loading& l, const Error& cause) {
  if (l.run.log) {
    went_back(l, cause,
              finish::undo(*l.run.log, l.run.worker.config, commit::SourceEvent::kFailed,
                           finish::aborted(cause)));
  }
  if (l.target != nullptr) l.target->abort(cause.message());
  return cause;
}

Status commit(Loading& l) {
  GCR_ASSIGN(const proto::CommitReply confirmed,
             migration::commit(
                 l.run, *l.target,
                 {.give_up = [&l](const Error& cause) { return give_up(l, cause); },
                  .answered = [] {},
                  .in_hand = {},
                  .went_back = [&l](const Error& lost,
                                    const Status& undone) { return went_back(l, lost, undone); },
                  .unconfirmed = "; the agent keeps asking"}));
  l.run.report.set_destination_pid(confirmed.pid());
  l.run.report.set_checkpoint(l.began.checkpoint());
  return {};
}

void load(Loading& l) {
  l.run.report.set_migration_id(to_bytes(l.run.migration));
  l.began.set_migration_id(to_bytes(l.run.migration));
  l.began.set_role(journal::Began::SOURCE);
  l.began.set_ordered_by(l.run.worker.channel.peer().common_name);
  l.began.set_loads(true);
  const Status voted = worker::guarded([&] {
    return run_steps(l.run, l, {open, preflight, begin, prepare, send, ask_for_vote});
  });
  const Status loaded = voted ? commit(l) : give_up(l, reason_of(l.run, voted.error()));
  l.run.report.set_migrated(loaded.has_value());
  conclude(l.run, l.began, loaded, "the checkpoint was not restored");
}

}  // namespace

asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request) {
  Console console(context, proto::MigrateRequest());
  Loading loading{{context, console}, std::move(request)};
  log_migration(loading.run.migration);
  spdlog::info("loads a checkpoint of {}", control::printable(loading.request.directory()));
  co_await run_with_console(context, console, [&loading] { load(loading); });
}

}  // namespace gcr::migration

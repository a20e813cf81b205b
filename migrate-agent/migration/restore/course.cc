// The loading of a checkpoint: a migration whose source is a store. The agent connects to itself as
// the destination, which trusts this side no more than another agent; what it restores is checked
// as in any migration.
#include <fmt/format.h>

#include <asio/post.hpp>
#include <chrono>
#include <future>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/finish/deliver.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "migrate-agent/migration/restore/checks.h"
#include "migrate-agent/migration/restore/stored_job.h"
#include "migrate-agent/migration/source/console.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/signers.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/transfer/negotiation/offer.h"
#include "src/base/log.h"
#include "src/control/wire.h"
#include "store/upkeep.h"

namespace gcr::migration {
namespace {

using Clock = worker::Phases::Clock;

constexpr std::chrono::milliseconds kCommitPause{200};

/// Members are destroyed in reverse.
struct Loading {
  worker::WorkerContext& worker;
  Console& console;
  proto::LoadRequest request;
  Uuid migration = Uuid::random();
  worker::Phases phases{"source", console.started()};
  proto::MigrateReport report{};
  journal::Began began{};
  std::optional<store::Directory> directory{};
  std::optional<StoredJob> job{};
  std::optional<commit::SourceLog> log{};
  std::unique_ptr<AgentTarget> target{};
  StoredJob::Regions regions{};
  proto::RestoreRequest restore{};
  worker::Cancellation::Registration interrupting{};
};

Status judge(Loading& l, const proto::PreflightReply& reply) {
  for (const proto::Finding& finding : reply.findings()) {
    if (!findings::is_blocker(finding)) l.report.add_notes(findings::note_of(finding));
  }
  std::string reason = findings::reason_of({reply.findings().begin(), reply.findings().end()});
  if (reason.empty()) return {};
  return Error(Code::kRefused, std::move(reason));
}

Status open(Loading& l) {
  const worker::Phases::Timer timer(l.phases, "course", "open");
  const proto::LoadRequest& asked = l.request;
  GCR_ASSIGN(const store::Owner owner, check_owner(l.worker, asked.directory()));
  GCR_ASSIGN(l.directory, store::Directory::open(asked.directory(), owner));
  GCR_ASSIGN(const store::SignerRule rule, signer_rule(l.worker.config));
  GCR_ASSIGN(proto::Manifest manifest,
             store::find_manifest(*l.directory, asked.name(), l.worker.config.tls, rule));
  if (manifest.protocol_version() > control::kProtocolVersion) {
    return Error(Code::kUnsupported,
                 fmt::format("the checkpoint {} was taken by a newer release", manifest.name()));
  }
  GCR_TRY(check_rights(l.worker, manifest));
  if (!asked.copy()) GCR_TRY(check_originals(manifest));
  l.console.tell("open", fmt::format("loading {}/{}", asked.directory(), manifest.name()));
  l.report.set_vram_bytes(manifest.vram_bytes());
  l.report.set_buffers(static_cast<std::uint64_t>(manifest.buffers_size()));
  l.report.set_processes(static_cast<std::uint32_t>(manifest.members_size()));
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
  const worker::Config& config = l.worker.config;
  proto::PreflightRequest asked = l.job->manifest().job();
  asked.set_migration_id(to_bytes(l.migration));
  asked.set_ordered_by(l.worker.channel.peer().common_name);
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
  const worker::Phases::Timer timer(l.phases, "course", "preflight");
  GCR_ASSIGN(const std::string address, own_address(l.worker));
  GCR_ASSIGN(auto agent, l.worker.agent_at(address));
  l.target = std::make_unique<AgentTarget>(
      l.worker.io, std::move(agent), l.migration,
      [&cancellation = l.worker.cancellation](const Error& lost) { cancellation.request(lost); });
  l.interrupting = l.worker.cancellation.on_request(
      [&l] { l.target->interrupt(l.worker.cancellation.check().error()); });
  GCR_ASSIGN(const proto::PreflightReply reply, l.target->preflight(question(l)));
  return judge(l, reply);
}

/// From here on the loading survives this worker.
Status begin(Loading& l) {
  // No process here is claimed, but the daemon has to know of the journal.
  GCR_TRY(worker::on_io(l.worker.io,
                        l.worker.daemon.claim_processes(l.migration, {}, l.began.ordered_by())));
  l.began.set_peer(l.target->name());
  l.began.set_peer_name(l.target->common_name());
  GCR_ASSIGN(l.log, commit::SourceLog::create(l.worker.config.state_dir, l.migration, l.began));
  GCR_TRY(worker::on_io(l.worker.io,
                        [&] { return l.worker.line.open(l.migration, journal::Began::SOURCE); }));
  proto::Envelope started;
  started.mutable_started()->set_migration_id(to_bytes(l.migration));
  l.console.tell(std::move(started));
  if (l.request.once()) {
    GCR_TRY(store::begin_restore(*l.directory, l.began.checkpoint(), l.migration));
  }
  return fault::point("source.load.began");
}

Status prepare(Loading& l) {
  const worker::Phases::Timer timer(l.phases, "course", "prepare");
  proto::PrepareRequest request;
  *request.mutable_buffers() = l.job->manifest().buffers();
  request.set_lanes(l.worker.config.lanes);
  request.set_transport(proto::TRANSPORT_TCP);
  // VRAM is compared with what it was when the checkpoint was taken.
  request.set_digest_key(l.job->manifest().digest_key());
  request.set_no_prefill(l.request.no_prefill());
  *request.mutable_offer() = transfer::data_offer(l.worker.config.unencrypted_data);
  GCR_ASSIGN(const Prepared prepared, l.target->prepare(request));
  for (const proto::BufferRegion& region : prepared.reply.regions()) {
    l.regions[region.buffer_id()] = region.region();
  }
  for (const proto::Buffer& buffer : l.job->manifest().buffers()) {
    if (l.regions.contains(buffer.id())) continue;
    return Error(Code::kProtocol, fmt::format("buffer {} has no region", buffer.id()));
  }
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

/// VRAM beside images.
Status send_all(Loading& l, images::ImageSender& sender) {
  auto vram = std::async(std::launch::async, [&l] {
    return worker::guarded([&l] {
      return l.phases.time("vram", "read", [&l] {
        return l.job->send_vram(l.target->channel(), l.regions, l.restore);
      });
    });
  });
  const Status images = worker::guarded([&] {
    return l.phases.time("images", "read", [&]() -> Status {
      GCR_TRY(l.job->send_images(sender));
      return send_files(l, sender);
    });
  });
  GCR_TRY(vram.get());
  return images;
}

Status send(Loading& l) {
  const worker::Phases::Timer timer(l.phases, "course", "read");
  l.console.tell("read", fmt::format("reading {} of VRAM", format_bytes(l.report.vram_bytes())));
  l.console.begin_copying(l.target->channel());
  GCR_ASSIGN(images::ImageSender* const sender,
             l.target->image_sender(store::Compression::kNone, 0));
  GCR_TRY(send_all(l, *sender));
  GCR_ASSIGN(const images::SentImages sent, sender->finish());
  add_files(sent, l.restore);
  l.report.set_image_bytes(sent.raw_bytes);
  return fault::point("source.load.sent");
}

Status ask_for_vote(Loading& l) {
  const worker::Phases::Timer timer(l.phases, "course", "restore");
  *l.restore.mutable_members() = l.job->manifest().members();
  l.console.tell("restore", "restoring");
  journal::Record record;
  record.mutable_awaiting();
  GCR_TRY(l.log->advance(commit::SourceEvent::kAskRestore, std::move(record)));
  GCR_ASSIGN(proto::RestoreReply vote, l.target->restore(l.restore));
  std::uint64_t chunks = 0;
  for (const proto::StoredBuffer& buffer : l.job->manifest().vram()) {
    chunks += static_cast<std::uint64_t>(buffer.contents_size());
  }
  if (vote.verified_chunks() != chunks) {
    return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                              vote.verified_chunks(), chunks));
  }
  l.report.set_verified(true);
  const double to_ours_ms = l.phases.since_origin_ms(Clock::time_point{});
  for (proto::PhaseTime& phase : *vote.mutable_phases()) {
    phase.set_start_ms(phase.start_ms() + to_ours_ms);
    *l.report.add_phases() = std::move(phase);
  }
  return fault::point("source.load.voted");
}

Result<commit::CommitAnswer> order_commit(Loading& l) {
  const auto until = Clock::now() + 2 * l.worker.config.peer_silence();
  auto answer = l.target->commit();
  if (answer) return answer;
  finish::Backoff backoff(l.worker.io, kCommitPause);
  return worker::on_io(l.worker.io,
                       finish::deliver_commit(l.worker, l.log->journal(), backoff, until));
}

Status give_up(Loading& l, Error cause) {
  if (l.log) {
    const Status undone =
        finish::undo(*l.log, l.worker.config, commit::SourceEvent::kFailed, finish::aborted(cause));
    if (!undone) l.report.set_recovering(true);
  }
  if (l.target != nullptr) l.target->abort(cause.message());
  return cause;
}

Status commit(Loading& l) {
  journal::Record record;
  record.mutable_committed();
  const Status decided = l.log->advance(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    l.report.set_recovering(true);
    return decided;
  }
  if (!decided) return give_up(l, decided.error());
  l.report.set_committed(true);
  l.console.set_committed(true);
  const auto answer = order_commit(l);
  if (!answer) return answer.error().while_doing("the commit was sent but not confirmed");
  const Status settled = finish::settle(*l.log, l.worker.config, *answer);
  if (const auto* lost = std::get_if<Error>(&*answer)) {
    l.report.set_committed(false);
    return *lost;
  }
  if (!settled) l.report.add_notes(settled.error().message());
  l.report.set_destination_pid(std::get<proto::CommitReply>(*answer).pid());
  l.report.set_checkpoint(l.began.checkpoint());
  return {};
}

Status load(Loading& l) {
  const Status voted = worker::guarded([&]() -> Status {
    for (const auto step : {open, preflight, begin, prepare, send, ask_for_vote}) {
      GCR_TRY(l.worker.cancellation.check());
      GCR_TRY(step(l));
    }
    return l.worker.cancellation.check();
  });
  if (voted) return commit(l);
  const Status wanted = l.worker.cancellation.check();
  return give_up(l, wanted ? voted.error() : wanted.error());
}

void run(Loading& l) {
  l.report.set_migration_id(to_bytes(l.migration));
  l.began.set_migration_id(to_bytes(l.migration));
  l.began.set_role(journal::Began::SOURCE);
  l.began.set_ordered_by(l.worker.channel.peer().common_name);
  l.began.set_loads(true);
  const Status loaded = load(l);
  l.report.set_migrated(loaded.has_value());
  if (!loaded) {
    l.report.set_code(std::string(to_string(loaded.error().code())));
    l.report.set_message(loaded.error().message());
    spdlog::error("the checkpoint was not restored: {}", loaded.error().message());
  }
  l.report.set_total_ms(l.phases.since_origin_ms(Clock::now()));
  for (proto::PhaseTime& phase : l.phases.list()) *l.report.add_phases() = std::move(phase);
  const unsigned journal_errors = l.log ? l.log->write_errors() : 0;
  asio::post(l.worker.io, [&daemon = l.worker.daemon,
                           outcome = commit::ending_of(l.began, l.report, journal_errors)] {
    daemon.report_outcome(outcome);
  });
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = l.report;
  l.console.tell(std::move(envelope));
}

}  // namespace

asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request) {
  Console console(context, proto::MigrateRequest());
  Loading loading{context, console, std::move(request)};
  log_migration(loading.migration);
  spdlog::info("loads a checkpoint of {}", control::printable(loading.request.directory()));
  co_await run_with_console(context, console, [&loading] { run(loading); });
}

}  // namespace gcr::migration

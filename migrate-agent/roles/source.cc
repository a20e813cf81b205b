// The source's course: examine, prepare, copy while the process runs, switch over, commit.
// proto/PROTOCOL.md has the state machine; SourceProcess::State says how far the process has been
// taken apart, and every failure before the commit leads back to a running process.
#include "migrate-agent/roles/source.h"

#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include "migrate-agent/door/throttle.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/process/inspect.h"
#include "migrate-agent/process/zero_pages.h"
#include "migrate-agent/roles/host_facts.h"
#include "migrate-agent/roles/records.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::chrono::hours kOperatorPatience{24 * 365};
constexpr milliseconds kCommitPause{200};
constexpr seconds kGateTimeout{10};
constexpr seconds kLockTimeout{10};
constexpr double kDefaultDowntimeLimitMs = 300;
constexpr unsigned kDefaultMaxRounds = 30;

PrecopyLimits limits_of(const proto::MigrateRequest& request) {
  return {.downtime_ms = request.downtime_limit_ms() > 0 ? request.downtime_limit_ms()
                                                         : kDefaultDowntimeLimitMs,
          .max_rounds = request.max_rounds() > 0 ? request.max_rounds() : kDefaultMaxRounds,
          .auto_converge = request.auto_converge(),
          .strict = request.strict()};
}

images::Compression to_compression(proto::Compression compression) {
  switch (compression) {
    case proto::COMPRESSION_NONE:
      return images::Compression::kNone;
    case proto::COMPRESSION_LZ4:
      return images::Compression::kLz4;
    case proto::COMPRESSION_ZSTD:
      return images::Compression::kZstd;
    default:
      return images::Compression::kAuto;
  }
}

}  // namespace

using asio::awaitable;

Source::Source(WorkerContext& context, proto::MigrateRequest request)
    : context_(context),
      request_(std::move(request)),
      limits_(limits_of(request_)),
      phases_("source", start_) {}

awaitable<void> Source::tell(const char* phase, std::string text) {
  context_.daemon.report_phase(phase);
  proto::Envelope envelope;
  envelope.mutable_event()->set_phase(phase);
  envelope.mutable_event()->set_text(std::move(text));
  // An operator who is gone does not stop a migration that is under way.
  const Status sent = co_await context_.channel.send(envelope);
  if (!sent) spdlog::info("the operator is gone: {}", sent.error().message());
}

void Source::complete_report() {
  report_.set_total_ms(Phases::milliseconds(Phases::Clock::now() - start_));
  report_.set_downtime_limit_ms(limits_.downtime_ms);
  for (proto::PhaseTime& phase : phases_.list()) *report_.add_phases() = std::move(phase);
  if (channel_ != nullptr) {
    const transport::Statistics statistics = channel_->statistics();
    report_.set_wire_bytes(statistics.wire_bytes);
    report_.set_reconnections(statistics.reconnections);
  }
  if (!precopy_) return;
  for (proto::Round& round : precopy_->rounds()) {
    report_.set_sent_vram_bytes(report_.sent_vram_bytes() + round.sent_bytes());
    *report_.add_rounds() = std::move(round);
  }
}

/// What may be asked for while the migration goes on. An operator who is gone asks for nothing.
awaitable<void> Source::heed_operator() {
  for (;;) {
    const auto message = co_await context_.channel.receive(kOperatorPatience);
    if (!message) break;
    if (message->has_cancel_request()) context_.cancellation.request("the operator cancelled it");
  }
  asio::steady_timer forever(context_.io, asio::steady_timer::time_point::max());
  co_await forever.async_wait(asio::use_awaitable);
}

awaitable<void> Source::run() {
  using asio::experimental::awaitable_operators::operator||;
  co_await (migrate_and_report() || heed_operator());
}

awaitable<void> Source::migrate_and_report() {
  report_.set_migration_id(to_bytes(migration_));
  const Status migrated = co_await migrate();
  report_.set_migrated(migrated.has_value());
  if (!migrated) {
    report_.set_code(std::string(to_string(migrated.error().code())));
    report_.set_message(migrated.error().message());
    spdlog::error("migration {} of process {}: {}", migration_.to_string(), request_.pid(),
                  migrated.error().message());
  }
  complete_report();
  context_.daemon.report_outcome(report_.migrated(), report_.message());
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report_;
  const Status sent = co_await context_.channel.send(envelope);
  if (!sent) spdlog::warn("nobody took the report: {}", sent.error().message());
}

awaitable<Status> Source::migrate() {
  const auto registration = context_.cancellation.on_request([this] {
    asio::post(context_.io, [this] { interrupt(context_.cancellation.check().error()); });
  });
  Status agreed = co_await begin();
  if (!log_) co_return agreed;
  if (agreed) agreed = co_await move_to_the_vote();
  if (agreed) co_return co_await commit();
  Error cause = interruption(agreed.error());
  co_return co_await give_up(std::move(cause));
}

awaitable<Status> Source::move_to_the_vote() {
  GCR_CO_TRY(co_await examine_process());
  GCR_CO_TRY(co_await open_peer());
  GCR_CO_TRY(co_await preflight());
  GCR_CO_TRY(co_await prepare());
  for (bool closed = false; !closed;) {
    GCR_CO_TRY(co_await precopy());
    const Result<bool> gated = co_await close_gate();
    GCR_CO_TRY(gated);
    closed = *gated;
  }
  GCR_CO_TRY(co_await switch_over());
  co_return co_await check_before_commit();
}

/// Interrupted is who waits for the destination; every other step ends by itself.
void Source::interrupt(Error why) {
  if (!interrupted_) interrupted_ = std::move(why);
  if (channel_ != nullptr) channel_->cancel();
  if (peer_ != nullptr) peer_->abandon_call();
}

Status Source::check() const {
  if (interrupted_) return *interrupted_;
  return {};
}

/// Why a step failed: a transfer that was interrupted only says that it was.
Error Source::interruption(Error error) const { return interrupted_.value_or(std::move(error)); }

/// The next step of the commit's protocol, durable when this returns.
awaitable<Status> Source::note(commit::SourceEvent event, journal::Record record) {
  co_return co_await offload(context_.blocking,
                             [&] { return log_->advance(event, std::move(record)); });
}

awaitable<Status> Source::precopy() {
  const Phases::Timer timer(phases_, "course", "pre-copy");
  // A failure from here on says that the process runs on, not that nothing was begun.
  report_.set_source_touched(true);
  channel_->limit_rate(request_.max_bandwidth_bytes());
  for (;;) {
    GCR_CO_TRY(co_await refresh_buffers());
    // CRIU is started before the look: what comes after it is what the process may dirty.
    const Status looked = co_await offload(context_.blocking, [&]() -> Status {
      GCR_TRY(ready_images());
      return precopy_->look();
    });
    GCR_CO_TRY(looked);
    const auto next = precopy_->decide();
    GCR_CO_TRY(next);
    if (*next != Convergence::Next::kRound) {
      report_.set_switchover_reason(to_string(*next));
      break;
    }
    co_await tell("precopy", fmt::format("round {}: sending {}", precopy_->rounds().size() + 1,
                                         format_bytes(precopy_->remaining_bytes())));
    const Status sent = co_await offload(context_.blocking, [&] { return send_round(); });
    GCR_CO_TRY(sent);
    GCR_CO_TRY(fault::point("source.copied"));
    GCR_CO_TRY(check());
  }
  channel_->limit_rate(0);
  GCR_CO_TRY(open_image_sender());
  report_.set_expected_downtime_ms(precopy_->expected_ms());
  if (detaching_noted_) co_return Status();
  detaching_noted_ = true;
  const Status armed = co_await offload(context_.blocking, [&] { return arm_keeper(); });
  GCR_CO_TRY(armed);
  journal::Record record;
  record.mutable_detaching();
  co_return co_await note(commit::SourceEvent::kDetaching, std::move(record));
}

/// While it is sent, the process is held back as far as auto-converge asks for.
Status Source::send_round() {
  Throttle throttle(process_->door());
  throttle.set_share(precopy_->convergence().throttle());
  const Status sent = precopy_->send(throttle);
  GCR_TRY(throttle.stop());
  GCR_TRY(sent);
  if (images_->in_rounds()) {
    const Phases::Timer dumping(phases_, "images", "pre-dump");
    GCR_TRY(open_image_sender());
    images_->round(*image_sender_);
  }
  return {};
}

/// Not before the link's rate is known: what pays to be compressed depends on it.
Status Source::open_image_sender() {
  if (image_sender_ != nullptr) return {};
  GCR_ASSIGN(image_sender_, images::ImageSender::create(
                                *channel_, {.region = image_region_.first,
                                            .region_bytes = image_region_.second,
                                            .compression = to_compression(request_.compression()),
                                            .link_bytes_per_s = precopy_->convergence().rate(),
                                            .secret = key_bytes_}));
  return {};
}

Status Source::ready_images() {
  if (images_->prepared()) return {};
  const Phases::Timer timer(phases_, "images", "start CRIU");
  return images_->prepare();
}

/// True if the switchover goes on; false if the gate is open again, for another round.
awaitable<Result<bool>> Source::close_gate() {
  co_await tell("switchover", "closing the gate");
  gate_closed_at_ = Phases::Clock::now();
  report_.set_gate_closed_ms(phases_.since_origin_ms(gate_closed_at_));
  const Status gated = co_await offload(context_.blocking, [&] {
    return phases_.time("process", "close gate",
                        [&] { return process_->close_gate(kGateTimeout); });
  });
  GCR_CO_TRY(gated);
  GCR_CO_TRY(fault::point("source.gated"));
  GCR_CO_TRY(check());
  GCR_CO_TRY(co_await refresh_buffers());
  if (!limits_.strict) co_return true;
  co_return co_await offload(context_.blocking, [&]() -> Result<bool> {
    GCR_TRY(precopy_->look());
    if (precopy_->acceptable()) return true;
    GCR_TRY(process_->open_gate());
    return false;
  });
}

awaitable<Status> Source::switch_over() {
  using asio::experimental::awaitable_operators::operator&&;
  const Phases::Timer timer(phases_, "course", "switchover");
  // The mover holds VRAM: its last round, and all that becomes of the process, go side by side.
  auto [vram_sent, control_sent] = co_await (send_last_round() && send_control_state());
  // A destination that gives up says why on the control channel; its data connections only break.
  GCR_CO_TRY(control_sent);
  GCR_CO_TRY(vram_sent);
  GCR_CO_TRY(fault::point("source.flushed"));
  GCR_CO_TRY(check());
  co_return co_await restore_there();
}

awaitable<Status> Source::send_last_round() {
  co_return co_await offload(context_.blocking, [&]() -> Status {
    if (!limits_.strict) GCR_TRY(precopy_->look());  // else close_gate() has looked
    GCR_TRY(precopy_->send_last());
    report_.set_buffers(vram_->count());
    report_.set_vram_bytes(vram_->total_bytes());
    return {};
  });
}

awaitable<Status> Source::send_control_state() {
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(phases_.time("process", "arm keeper", [&] { return arm_keeper(); }));
    GCR_TRY(phases_.time("process", "detach VRAM", [&] { return process_->detach(); }));
    GCR_TRY(fault::point("source.detached"));
    GCR_TRY(phases_.time("process", "control checkpoint", [&]() -> Status {
      GCR_TRY(process_->lock(kLockTimeout));
      GCR_TRY(fault::point("source.locked"));
      return process_->checkpoint();
    }));
    GCR_TRY(fault::point("source.checkpointed"));
    const auto dropped = phases_.time("process", "drop zero pages",
                                      [&] { return process::drop_zero_pages(process_->door()); });
    // What was not dropped is moved.
    if (!dropped) spdlog::warn("pages of zeros stay: {}", dropped.error().message());
    GCR_TRY(phases_.time("process", "criu dump",
                         [&] { return images_->dump(*process_, *image_sender_); }));
    GCR_TRY(fault::point("source.dumped"));
    GCR_ASSIGN(sent_images_,
               phases_.time("images", "flush images", [&] { return image_sender_->finish(); }));
    report_.set_image_bytes(sent_images_.raw_bytes);
    report_.set_sent_image_bytes(sent_images_.sent_bytes);
    report_.set_compression(std::string(images::to_string(sent_images_.codec)));
    report_.set_image_mode(images_->in_rounds() ? "rounds" : "stream");
    report_.set_image_mode_reason(images_->reason());
    return {};
  });
}

awaitable<Status> Source::restore_there() {
  proto::Envelope envelope;
  proto::RestoreRequest& request = *envelope.mutable_restore_request();
  std::uint64_t chunks = 0;
  for (const auto& [id, digests] : vram_->digests()) {
    proto::BufferDigests& out = *request.add_digests();
    out.set_buffer_id(id);
    out.set_digests(digests.data(), digests.size() * sizeof(digest::Digest));
    chunks += digests.size();
  }
  for (const images::SentFile& file : sent_images_.files) {
    proto::ImageFile& out = *request.add_files();
    out.set_name(file.name);
    out.set_size_bytes(file.size_bytes);
    out.set_id(file.id);
    out.set_digest(file.digest.to_bytes());
  }
  co_await tell("restore", fmt::format("restoring at {}", destination_.to_string()));
  journal::Record record;
  record.mutable_awaiting();
  GCR_CO_TRY(co_await note(commit::SourceEvent::kAskRestore, std::move(record)));
  GCR_CO_TRY(fault::point("source.awaiting"));
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  GCR_CO_TRY(fault::point("source.voted"));
  const proto::RestoreReply& answer = reply->restore_reply();
  if (answer.verified_chunks() != chunks) {
    co_return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                                 answer.verified_chunks(), chunks));
  }
  report_.set_verified(true);
  report_.set_prefilled(answer.prefilled());
  for (const std::string& note : answer.notes()) report_.add_notes(note);
  const double to_ours_ms = phases_.since_origin_ms(Phases::Clock::time_point{} - clock_offset_);
  for (proto::PhaseTime phase : answer.phases()) {
    phase.set_start_ms(phase.start_ms() + to_ours_ms);
    *report_.add_phases() = std::move(phase);
  }
  co_return Status();
}

/// The last look: the stopped process is still there, and nobody wants it back.
awaitable<Status> Source::check_before_commit() {
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(context_.cancellation.check());
    GCR_TRY(check());
    GCR_ASSIGN(const std::uint64_t started, process::start_time(process_->pid()));
    if (started == log_->journal().began().process().start_time()) return {};
    return Error(Code::kNotFound, "the process ended while it was moved");
  });
}

awaitable<Status> Source::commit() {
  const Phases::Timer timer(phases_, "course", "commit");
  journal::Record record;
  record.mutable_committed();
  const Status decided = co_await note(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    // Nobody knows what the journal says: as if we had died here (recovery reads it again).
    report_.set_recovering(true);
    co_return decided;
  }
  if (!decided) co_return co_await give_up(decided.error());
  // From here on the source's copy never runs again, whatever becomes of the answer.
  report_.set_committed(true);
  auto reply = co_await order_commit();
  report_.set_downtime_ms(Phases::milliseconds(Phases::Clock::now() - gate_closed_at_));
  if (!reply) {
    co_return reply.error().while_doing(
        "the commit was sent but not confirmed; the agent goes on asking, and the stopped process "
        "is kept at the source");
  }
  report_.set_destination_pid(reply->pid());
  const Status released = co_await release(reply->pid());
  if (!released) report_.add_notes("at the source: " + released.error().message());
  co_await tell("commit",
                fmt::format("process {} runs at {}", reply->pid(), destination_.to_string()));
  co_return Status();
}

/// On the migration's connection, and then for a while on new ones; after that recovery goes on.
awaitable<Result<proto::CommitReply>> Source::order_commit() {
  const PeerAgent destination{destination_, peer_->peer().common_name, context_.tls,
                              context_.config.host, silence()};
  const auto until = Phases::Clock::now() + 2 * silence();
  proto::Envelope envelope;
  envelope.mutable_commit_request()->set_migration_id(to_bytes(migration_));
  const Status unharmed = fault::point("source.committed");
  if (unharmed) {
    auto reply = co_await peer_->call(envelope);
    if (reply) co_return std::move(*reply->mutable_commit_reply());
  }
  peer_->close();
  asio::steady_timer pause(context_.io);
  for (;;) {
    auto delivered = co_await deliver_commit(destination, migration_);
    if (delivered || Phases::Clock::now() > until) co_return delivered;
    spdlog::warn("migration {}: the commit is not confirmed yet: {}", migration_.to_string(),
                 delivered.error().message());
    pause.expires_after(kCommitPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

/// The destination's copy runs: nothing of the process is needed here any more.
awaitable<Status> Source::release(pid_t running_there) {
  GCR_CO_TRY(fault::point("source.confirmed"));
  const Phases::Timer releasing(phases_, "process", "release source");
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(process_->kill());
    image_sender_.reset();
    scratch_.reset();
    if (keeper_) GCR_TRY(keeper_->end());
    GCR_TRY(fault::point("source.killed"));
    return log_->advance(
        commit::SourceEvent::kCommitConfirmed,
        finished(fmt::format("process {} runs at {}", running_there, destination_.to_string())));
  });
}

/// Before the commit: whatever was done to the process is undone.
Status Source::roll_back() {
  if (!process_) return {};
  mover::Descriptors descriptors;
  if (process_->state() > SourceProcess::State::kGated) {
    GCR_ASSIGN(descriptors, vram_->descriptors());
  }
  return process_->roll_back(std::move(descriptors));
}

awaitable<Status> Source::give_up(Error cause) {
  if (channel_ != nullptr) channel_->cancel();
  // Without this record recovery comes to the same decision: the commit was not written.
  journal::Record record = aborted(cause);
  const Status noted = co_await note(commit::SourceEvent::kFailed, std::move(record));
  if (!noted) spdlog::error("migration {}: {}", migration_.to_string(), noted.error().message());
  const Status resumed = co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(roll_back());
    scratch_.reset();
    if (keeper_) GCR_TRY(keeper_->end());
    return log_->advance(commit::SourceEvent::kRolledBack, finished("the process runs here"));
  });
  if (peer_ != nullptr) {
    proto::Envelope envelope;
    envelope.mutable_abort_request()->set_reason(cause.message());
    auto aborted = co_await peer_->call(envelope);
    if (!aborted) spdlog::info("no answer to the abort: {}", aborted.error().message());
  }
  if (!resumed) {
    report_.set_recovering(true);
    co_return Error(Code::kInternal, fmt::format("{}; and the source could not be resumed yet: {}",
                                                 cause.message(), resumed.error().message()));
  }
  co_return cause;
}

awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request) {
  Source source(context, std::move(request));
  co_await source.run();
}

}  // namespace gcr::agent

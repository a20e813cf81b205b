#include "migrate-agent/roles/destination.h"

#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <asio/steady_timer.hpp>

#include "migrate-agent/criu/images.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/peer/peer_link.h"
#include "migrate-agent/preflight/host_facts.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/ending.h"
#include "migrate-agent/roles/lost_copy.h"
#include "migrate-agent/roles/records.h"
#include "src/base/log.h"

namespace gcr::agent {

using asio::awaitable;

Status Destination::expect(State state, const char* request) const {
  if (state_ == state) return {};
  return Error(Code::kProtocol,
               fmt::format("{} does not fit the state of this migration", request));
}

awaitable<void> Destination::run(proto::PreflightRequest request) {
  using asio::experimental::awaitable_operators::operator||;
  proto::Envelope first;
  *first.mutable_preflight_request() = std::move(request);
  auto reply = co_await answer_alive(first);
  proto::Envelope envelope;
  if (reply) {
    envelope = std::move(*reply);
  } else {
    *envelope.mutable_failure() = control::to_failure(reply.error());
  }
  const Status sent = co_await context_.channel.send(envelope);
  if (sent && reply) co_await (serve() || take_data_connections());
  co_await conclude();
}

/// Sends Alive until there is an answer: a restore may take long.
awaitable<Result<proto::Envelope>> Destination::answer_alive(const proto::Envelope& request) {
  AliveBeat beat(context_.io, context_.channel, context_.config.peer_silence());
  auto reply = co_await answer(request);
  co_await beat.stop();
  co_return reply;
}

/// Before the vote everything is undone. After it, and without a decision, the copy stays frozen
/// and recovery asks the source. A refused migration has no journal, but is reported.
awaitable<void> Destination::conclude() {
  if (log_) co_await settle();
  if (is_migration_) report_ending();
}

awaitable<void> Destination::settle() {
  const Status concluded = co_await offload(context_.blocking, [&]() -> Status {
    if (state_ == State::kCommitted) {
      destroy();
      const std::int32_t pid = identity_.process().pid();
      GCR_TRY(log_->advance(commit::DestinationEvent::kResumed, finished("the process runs", pid)));
      return fault::point("destination.finished");
    }
    if (log_->state() != commit::DestinationState::kBuilding) return {};
    GCR_TRY(log_->advance(commit::DestinationEvent::kFailed, aborted(cause_)));
    destroy();
    GCR_TRY(group_.destroy());
    return log_->advance(commit::DestinationEvent::kCleared, finished("nothing is left"));
  });
  if (!concluded) spdlog::error("{}", concluded.error().message());
}

void Destination::report_ending() {
  report_.set_migration_id(to_bytes(migration_));
  report_.set_migrated(state_ == State::kCommitted);
  report_.set_committed(report_.migrated());
  report_.set_recovering(log_ && !report_.migrated() &&
                         journal::unfinished(log_->journal().records()));
  if (report_.migrated()) {
    report_.set_destination_pid(identity_.process().pid());
  } else {
    report_.set_code(std::string(to_string(cause_.code())));
    report_.set_message(cause_.message());
  }
  context_.daemon.report_outcome(
      ending_of(began_, std::move(report_), log_ ? log_->write_errors() : 0));
}

/// Everything of the migration on this host; lanes write into landing memory and VRAM, so they end
/// first.
void Destination::destroy() {
  data_.reset();
  process_.reset();
  prepared_restore_.reset();
  images_.reset();
  vram_.reset();
  image_memory_.reset();
  memory_.reset();
}

awaitable<void> Destination::serve() {
  while (state_ != State::kCommitted && state_ != State::kEnded) {
    auto request = co_await context_.channel.receive(context_.config.peer_silence());
    if (!request) {
      cause_ = request.error().while_doing("the source was lost");
      spdlog::info("{}", cause_.message());
      co_return;
    }
    auto reply = co_await answer_alive(*request);
    proto::Envelope envelope;
    if (reply) {
      envelope = std::move(*reply);
    } else {
      spdlog::error("{}", reply.error().message());
      *envelope.mutable_failure() = control::to_failure(reply.error());
      cause_ = reply.error();
      state_ = State::kEnded;
    }
    const Status sent = co_await context_.channel.send(envelope);
    if (!sent) spdlog::warn("{}", sent.error().message());
  }
}

awaitable<void> Destination::take_data_connections() {
  for (;;) {
    auto socket = co_await context_.daemon.next_data_connection(std::chrono::hours(1));
    if (socket && data_ != nullptr) {
      const Status added = data_->add_connection(std::move(*socket));
      if (!added) spdlog::warn("data connection refused: {}", added.error().message());
    } else if (!socket && socket.error().code() != Code::kTimeout) {
      asio::steady_timer forever(context_.io, asio::steady_timer::time_point::max());
      co_await forever.async_wait(asio::use_awaitable);
    }
  }
}

awaitable<Result<proto::Envelope>> Destination::answer(const proto::Envelope& request) {
  switch (request.body_case()) {
    case proto::Envelope::kPreflightRequest:
      co_return co_await preflight(request.preflight_request());
    case proto::Envelope::kPrepareRequest:
      co_return co_await prepare(request.prepare_request());
    case proto::Envelope::kFallBackRequest:
      co_return co_await fall_back(request.fall_back_request());
    case proto::Envelope::kBuffersRequest:
      co_return co_await change_buffers(request.buffers_request());
    case proto::Envelope::kClockRequest: {
      proto::Envelope reply;
      reply.mutable_clock_reply()->set_monotonic_ns(
          std::chrono::nanoseconds(Phases::Clock::now().time_since_epoch()).count());
      co_return reply;
    }
    case proto::Envelope::kRestoreRequest:
      co_return co_await restore(request.restore_request());
    case proto::Envelope::kCommitRequest:
      co_return co_await commit(request.commit_request());
    case proto::Envelope::kAbortRequest:
      co_return co_await abort(request.abort_request());
    default:
      co_return Error(Code::kProtocol, "the source sent a message that is not a request");
  }
}

awaitable<Result<proto::Envelope>> Destination::abort(const proto::AbortRequest& request) {
  cause_ =
      Error(Code::kCancelled, "the source aborted it: " + control::printable(request.reason()));
  spdlog::info("{}", cause_.message());
  if (state_ == State::kRestored) {
    GCR_CO_TRY(co_await offload(context_.blocking, [&]() -> Status {
      GCR_TRY(log_->advance(commit::DestinationEvent::kToldAbort, aborted(cause_)));
      return clear_copy();
    }));
  }
  state_ = State::kEnded;
  proto::Envelope reply;
  reply.mutable_abort_reply();
  co_return reply;
}

/// Before CRIU opens anything.
Result<process::VettedFiles> Destination::vet_files(const proto::RestoreRequest& request) const {
  if (request.credentials().empty()) {
    return Error(Code::kProtocol, "RestoreRequest does not tell the rights of the process");
  }
  GCR_ASSIGN(auto names, criu::images::file_names(image_memory_->path()));
  GCR_ASSIGN(const pid_t root, criu::images::root_pid(image_memory_->path()));
  return process::vet_files({std::move(names.files), std::move(names.deleted), root},
                            request.named(), request.credentials(0));
}

/// After the vote, when the copy was given up.
Status Destination::clear_copy() {
  GCR_TRY(recovery::destroy_restored(identity_, group_));
  destroy();
  return log_->advance(commit::DestinationEvent::kCleared, finished("nothing is left"));
}

Status Destination::restore_process(const proto::RestoreRequest& request,
                                    const std::vector<images::NamedFile>& files, Phases& phases) {
  GCR_TRY(phases.time("images", "complete images", [&] { return images_->complete(files); }));
  GCR_TRY(memory_->taken({.ordinary_bytes = image_room_}));
  GCR_TRY(fault::point("destination.imaged"));
  GCR_ASSIGN(const auto vetted,
             phases.time("process", "compare files", [&] { return vet_files(request); }));
  GCR_ASSIGN(process_,
             RestoredProcess::create(driver_, *prepared_restore_, {request.credentials(), vetted},
                                     running_, gpu_map_, group_, phases));
  return {};
}

awaitable<Result<proto::Envelope>> Destination::restore(const proto::RestoreRequest& request) {
  using asio::experimental::awaitable_operators::operator&&;
  GCR_CO_TRY(expect(State::kPrepared, "RestoreRequest"));
  GCR_CO_TRY(data_->health());
  Phases phases("destination", Phases::Clock::time_point{});
  GCR_CO_ASSIGN(const BufferDigests sent, check_digests(request.digests(), open_));
  GCR_CO_ASSIGN(const auto files, check_files(request.files()));
  // From now on nothing writes into the images that CRIU reads, or into the landing region.
  data_.reset();
  const bool prefilled = vram_->mode() == mover::IncomingVram::Mode::kPrefill;
  auto verifying = offload(context_.blocking, [&]() -> Result<std::uint64_t> {
    GCR_ASSIGN(const std::uint64_t chunks,
               phases.time("vram", prefilled ? "verify VRAM" : "fill and verify VRAM",
                           [&] { return vram_->fill_and_verify(sent); }));
    GCR_TRY(fault::point("destination.verified"));
    return chunks;
  });
  auto restoring =
      offload(context_.blocking, [&] { return restore_process(request, files, phases); });
  auto [verified, restored] = co_await (std::move(verifying) && std::move(restoring));
  GCR_CO_TRY(verified);
  GCR_CO_TRY(restored);
  const Status voted = co_await offload(context_.blocking, [&] { return vote(phases); });
  GCR_CO_TRY(voted);
  proto::Envelope envelope;
  proto::RestoreReply& reply = *envelope.mutable_restore_reply();
  reply.set_verified_chunks(*verified);
  reply.set_prefilled(prefilled);
  if (!vram_->note().empty()) reply.add_notes(vram_->note());
  for (proto::PhaseTime& phase : phases.list()) *reply.add_phases() = std::move(phase);
  *report_.mutable_phases() = reply.phases();
  report_.set_verified(true);
  co_return envelope;
}

/// The process is frozen before the vote is in the journal, and the vote is in the journal before
/// the source gets the reply.
Status Destination::vote(Phases& phases) {
  GCR_ASSIGN(auto descriptors, vram_->descriptors());
  GCR_TRY(process_->attach(std::move(descriptors), phases));
  GCR_TRY(fault::point("destination.attached"));
  GCR_TRY(process_->stand_still(phases));
  GCR_TRY(fault::point("destination.stopped"));
  identity_ = process_->identity();
  journal::Record record;
  *record.mutable_restored() = identity_;
  GCR_TRY(phases.time("process", "write the vote", [&] {
    return log_->advance(commit::DestinationEvent::kRestored, std::move(record));
  }));
  process_->leave();
  state_ = State::kRestored;
  return fault::point("destination.restored");
}

/// Afterwards the copy runs, or it was lost before and the journal is aborted.
Status Destination::let_go() {
  GCR_TRY(fault::point("destination.told"));
  GCR_ASSIGN(bool lost, give_up_lost_copy(*log_));
  if (lost) return {};
  journal::Record record;
  record.mutable_committed();
  GCR_TRY(log_->advance(commit::DestinationEvent::kToldCommit, std::move(record)));
  GCR_TRY(fault::point("destination.committed"));
  GCR_ASSIGN(lost, give_up_lost_copy(*log_));
  if (lost) return {};
  return recovery::resume_restored(identity_, group_);
}

awaitable<Result<proto::Envelope>> Destination::commit(const proto::CommitRequest& request) {
  GCR_CO_TRY(expect(State::kRestored, "CommitRequest"));
  if (request.migration_id() != to_bytes(migration_)) {
    co_return Error(Code::kProtocol, "CommitRequest names another migration");
  }
  const auto start = Phases::Clock::now();
  const pid_t pid = identity_.process().pid();
  GCR_CO_TRY(co_await offload(context_.blocking, [&] { return let_go(); }));
  proto::Envelope envelope;
  if (log_->state() == commit::DestinationState::kAborted) {
    const auto& lost = log_->journal().last(journal::Record::kAborted)->aborted();
    cause_ = Error(Code::kNotFound, lost.message());
    GCR_CO_TRY(co_await offload(context_.blocking, [&] { return clear_copy(); }));
    state_ = State::kEnded;
    envelope.mutable_copy_lost()->set_reason(lost.message());
    co_return envelope;
  }
  envelope.mutable_commit_reply()->set_pid(pid);
  envelope.mutable_commit_reply()->set_resume_ms(
      Phases::milliseconds(Phases::Clock::now() - start));
  GCR_CO_TRY(fault::point("destination.resumed"));
  state_ = State::kCommitted;
  co_return envelope;
}

awaitable<void> run_destination(WorkerContext& context, proto::PreflightRequest request) {
  Destination destination(context);
  co_await destination.run(std::move(request));
}

}  // namespace gcr::agent

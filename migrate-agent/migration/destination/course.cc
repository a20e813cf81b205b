#include "migrate-agent/migration/destination/course.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <asio/post.hpp>
#include <future>
#include <utility>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/gpu/host_copy/host_copy.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "migrate-agent/migration/finish/destination.h"
#include "migrate-agent/migration/finish/network.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "migrate-agent/process/layer/apply.h"
#include "src/base/log.h"

// The destination's course. answer() takes one step for each request and checks first that the
// request fits the state. Nothing is permanent before PrepareRequest, which creates the journal.
// The restore has a fixed order: all data has landed, and nothing writes to it any more; CRIU
// restores the stopped processes while VRAM is verified concurrently; VRAM is attached; the
// processes are frozen; the vote is in the journal; the source gets the reply. After the vote the
// copy no longer depends on this worker. A step that fails ends the course, and conclude() then
// undoes everything, unless the vote is in the journal.
namespace gcr::migration::destination {

namespace fs = std::filesystem;

/// Of one pack; the operator's own limit is the source's.
constexpr std::uint64_t kMaxLayerBytes = 64 * kGiB;

Course::Course(worker::WorkerContext& context) : context_(context) {
  context_.daemon.on_data_connection(
      [this](UniqueFd socket) { take_data_connection(std::move(socket)); });
}

Course::~Course() {
  context_.daemon.on_data_connection(nullptr);
  destroy();
}

/// Releases everything. The lanes end first: they write into landing memory and VRAM.
void Course::destroy() {
  set_data(nullptr);
  process_.reset();
  keeper_.reset();
  prepared_restore_.reset();
  vram_.reset();
  room_.reset();
}

/// Replaces the data channel. The old one is destroyed after the lock is released, because its
/// lanes may take a while to end.
void Course::set_data(std::unique_ptr<transfer::IncomingData> data) {
  const std::lock_guard lock(data_mutex_);
  std::swap(data_, data);
}

void Course::take_data_connection(UniqueFd socket) {
  const std::lock_guard lock(data_mutex_);
  if (data_ == nullptr) return;
  const Status added = data_->add_connection(std::move(socket));
  if (!added) spdlog::warn("refused a data connection: {}", added.error().message());
}

void Course::fail(const Error& error) {
  cause_ = error;
  ended_ = true;
}

Status Course::expect(std::optional<commit::DestinationState> state, const char* request) const {
  const bool fits = log_ ? state == log_->state() : !state;
  if (!ended_ && fits) return {};
  return Error(Code::kProtocol,
               fmt::format("{} is not allowed in the current state of this migration", request));
}

Result<proto::Envelope> Course::answer(const proto::Envelope& request) {
  proto::Envelope reply;
  switch (request.body_case()) {
    case proto::Envelope::kPreflightRequest:
      GCR_TRY(preflight(request.preflight_request(), *reply.mutable_preflight_reply()));
      break;
    case proto::Envelope::kPrepareRequest:
      GCR_TRY(prepare(request.prepare_request(), *reply.mutable_prepare_reply()));
      break;
    case proto::Envelope::kFallBackRequest:
      GCR_TRY(fall_back(request.fall_back_request(), *reply.mutable_fall_back_reply()));
      break;
    case proto::Envelope::kBuffersRequest:
      GCR_TRY(change_buffers(request.buffers_request(), *reply.mutable_buffers_reply()));
      break;
    case proto::Envelope::kClockRequest:
      note_pause(request.clock_request());
      reply.mutable_clock_reply()->set_monotonic_ns(
          std::chrono::nanoseconds(worker::Phases::Clock::now().time_since_epoch()).count());
      break;
    case proto::Envelope::kCarryRequest:
      GCR_TRY(carry(request.carry_request(), *reply.mutable_carry_reply()));
      break;
    case proto::Envelope::kRestoreRequest:
      GCR_TRY(restore(request.restore_request(), *reply.mutable_restore_reply()));
      break;
    case proto::Envelope::kCommitRequest:
      GCR_TRY(commit(request.commit_request(), reply));
      break;
    case proto::Envelope::kAbortRequest:
      GCR_TRY(abort(request.abort_request()));
      reply.mutable_abort_reply();
      break;
    default:
      return Error(Code::kProtocol, "the source sent a message that is not a request");
  }
  return reply;
}

/// Notes the source's pause, since the daemon does not wait for a paused migration.
void Course::note_pause(const proto::ClockRequest& source) {
  if (std::exchange(source_paused_, source.paused()) == source.paused()) return;
  asio::post(context_.io, [&daemon = context_.daemon, paused = source.paused()] {
    daemon.report_phase(paused ? worker::kPausedPhase : "receiving");
  });
}

/// Compares the memory files that the job has after its dump; asks for those that this host lacks.
Status Course::carry(const proto::CarryRequest& request, proto::CarryReply& reply) {
  GCR_TRY(expect(commit::DestinationState::kBuilding, "CarryRequest"));
  findings::Findings findings(findings::Side::kDestination);
  GCR_TRY(in_place([&]() -> Status {
    GCR_ASSIGN(files_, memory_files::plan(request.files(), request.boot_id(), findings));
    return {};
  }));
  if (findings.has_blocker()) {
    return Error(Code::kRefused, findings::reason_of(findings.list()));
  }
  for (std::size_t place = 0; place < files_.size(); ++place) {
    if (!files_[place].shared) reply.add_wanted(static_cast<std::uint32_t>(place));
  }
  return {};
}

/// Applies what the source's container had changed to the container that receives the job.
Status Course::apply_layers(const proto::RestoreRequest& request) {
  if (request.layers().empty()) return {};
  if (!container_) return Error(Code::kProtocol, "a job from no container comes with layers");
  GCR_ASSIGN(const layer::Trees trees, layer::trees_of(container_->init().pid()));
  const fs::path directory = room_->image_directory();
  for (const proto::Layer& one : request.layers()) {
    const layer::Tree* const tree = layer::find(trees, one.point());
    if (tree == nullptr) {
      return Error(Code::kRefused,
                   fmt::format("the job's container has files of its own at {}, where the "
                               "receiving container has none",
                               control::printable(one.point())));
    }
    for (const std::string& name : one.packs()) {
      const fs::path path = directory / fs::path(name).filename();
      const UniqueFd pack(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (!pack) return Error::from_errno(errno, "cannot open " + path.string());
      GCR_ASSIGN(const layer::Notes notes,
                 layer::apply_pack(*tree, pack.get(), {.max_bytes = kMaxLayerBytes}));
      for (const std::string& note : notes.list()) spdlog::info("{}", note);
      ::unlink(path.c_str());  // its memory is needed no longer
    }
  }
  return {};
}

/// Creates the files before CRIU opens them. Their names are on disk before they are given.
Status Course::make_files(const proto::RestoreRequest& request) {
  std::vector<proto::Credentials> members;
  for (const proto::DumpedMember& member : request.members()) {
    if (!member.credentials().empty()) members.push_back(member.credentials(0));
  }
  const fs::path directory = room_->image_directory();
  const UniqueFd images(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!images) return Error::from_errno(errno, "cannot open " + directory.string());
  GCR_TRY(in_place([&]() -> Status {
    GCR_ASSIGN(made_files_, memory_files::Incoming::make(std::move(files_), images, members));
    return {};
  }));
  if (made_files_->held().files().empty()) return {};
  GCR_TRY(journal::keep_files(log_->journal().path(), made_files_->held()));
  return in_place([&] { return made_files_->give_names(); });
}

/// Checks the names of all files in the images before CRIU opens any of them, and the rights of all
/// threads before CRIU gives them to any.
Result<std::vector<process::VettedFiles>> Course::vet_files(
    const proto::RestoreRequest& request) const {
  GCR_TRY(check_members(request.members_size()));
  GCR_ASSIGN(const auto names, criu::images::file_names(room_->image_directory()));
  GCR_ASSIGN(const pid_t root, criu::images::root_pid(room_->image_directory()));
  if (root != request.members(0).pid_in_namespace()) {
    return Error(Code::kProtocol, fmt::format("the images are of process {}, not of {}", root,
                                              request.members(0).pid_in_namespace()));
  }
  if (container_) {
    GCR_ASSIGN(const proto::Credentials rights,
               preflight::rights_of_container(container_->init().pid()));
    for (const proto::DumpedMember& member : request.members()) {
      for (const proto::Credentials& thread : member.credentials()) {
        GCR_TRY(preflight::check_confinement(thread, rights));
      }
    }
  }
  std::vector<process::VettedFiles> vetted;
  GCR_TRY(in_place([&]() -> Status {
    GCR_ASSIGN(vetted, process::vet_files(names, request.members(), made_files_->names()));
    return {};
  }));
  return vetted;
}

/// Changes the sockets in the images to addresses of this host.
Result<criu::AdaptedSockets> Course::adapt_sockets() const {
  GCR_ASSIGN(const process::Addresses here, addresses());
  criu::KeptNetwork kept{.addresses = {}, .interfaces = plan_.interfaces};
  for (const proto::NetworkInterface& interface : plan_.began.network().interfaces()) {
    for (const proto::NetworkAddress& each : interface.addresses()) {
      kept.addresses.insert(network::plain(each));
    }
  }
  GCR_ASSIGN(auto adapted,
             criu::adapt_sockets(
                 room_->image_directory(),
                 [&](const std::string& address) { return here.here(address); }, kept));
  GCR_TRY(in_place([&]() -> Status {
    for (const auto& [protocol, end] : adapted.bound) {
      GCR_TRY(process::check_free(protocol, end.address, end.port));
    }
    return {};
  }));
  return adapted;
}

Status Course::restore_process(const proto::RestoreRequest& request,
                               const std::vector<images::ImageFile>& files) {
  GCR_TRY(phases_.time("images", "complete images", [&] { return room_->complete(files); }));
  GCR_TRY(fault::point("destination.imaged"));
  GCR_TRY(phases_.time("process", "apply layers", [&] { return apply_layers(request); }));
  GCR_TRY(phases_.time("process", "make files", [&] { return make_files(request); }));
  GCR_TRY(fault::point("destination.carried"));
  GCR_ASSIGN(const auto vetted,
             phases_.time("process", "compare files", [&] { return vet_files(request); }));
  GCR_ASSIGN(const auto sockets,
             phases_.time("process", "adapt sockets", [&] { return adapt_sockets(); }));
  GCR_ASSIGN(process_, RestoredProcess::create(
                           plan_.driver, *prepared_restore_, room_->images().memories(),
                           {request.members(), vetted, sockets, plan_.gpu_users}, group_, phases_));
  if (!plan_.kept) {
    GCR_TRY(process_->restore_control(plan_.running, plan_.gpu_map));
  }
  spdlog::info("{} of process memory was written before the restore",
               format_bytes(prepared_restore_->taken_bytes()));
  return in_place([&] { return made_files_->drop_temporary_names(); });
}

/// Restores the process, and verifies VRAM concurrently.
Status Course::restore(const proto::RestoreRequest& request, proto::RestoreReply& reply) {
  GCR_TRY(expect(commit::DestinationState::kBuilding, "RestoreRequest"));
  GCR_TRY(data_->receiver().health());
  GCR_ASSIGN(const mover::VramDigests sent, check_digests(request.digests(), job_));
  GCR_ASSIGN(const auto files, check_files(request.files()));
  // From now on nothing writes into the images that CRIU reads, or into the landing region.
  set_data(nullptr);
  const bool prefilled = vram_->mode() == mover::IncomingVram::Mode::kPrefill;
  auto verifying = std::async(std::launch::async, [&]() -> Result<std::uint64_t> {
    GCR_ASSIGN(const std::uint64_t chunks,
               phases_.time("vram", prefilled ? "verify VRAM" : "fill and verify VRAM",
                            [&] { return vram_->fill_and_verify(sent); }));
    GCR_TRY(fault::point("destination.verified"));
    return chunks;
  });
  const Status restored = restore_process(request, files);
  GCR_ASSIGN(const std::uint64_t verified, verifying.get());
  GCR_TRY(restored);
  GCR_TRY(vote(request, reply));
  reply.set_verified_chunks(verified);
  reply.set_prefilled(prefilled);
  if (!vram_->note().empty()) reply.add_notes(vram_->note());
  for (proto::PhaseTime& phase : phases_.list()) *reply.add_phases() = std::move(phase);
  *report_.mutable_phases() = reply.phases();
  report_.set_verified(true);
  return {};
}

/// Hands the landing memory to a keeper, which is in the journal before it holds anything.
Status Course::keep_vram(const proto::RestoreRequest& request) {
  gpu::KeptCopy& kept = *plan_.kept;
  int user = 0;
  for (const auto& [member, expected] : plan_.gpu_users) {
    kept.mutable_members(user++)->set_pid(identity_.members(static_cast<int>(member.value)).pid());
  }
  std::map<std::uint64_t, std::string> digests;
  for (const auto& sent : request.digests()) digests[sent.buffer_id()] = sent.digests();
  for (gpu::KeptBuffer& buffer : *kept.mutable_buffers()) {
    const auto place = vram_->kept({buffer.buffer().id()});
    buffer.set_part(static_cast<std::uint32_t>(place.region));
    buffer.set_offset(place.offset);
    buffer.set_digests(digests.at(buffer.buffer().id()));
  }
  GCR_ASSIGN(keeper_, keeper::Keeper::start_installed(context_.config.criu.reaper));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = keeper_->id();
  record.mutable_keeper_started()->set_of_copy(true);
  GCR_TRY(log_->advance(commit::DestinationEvent::kKeeperStarted, std::move(record)));
  std::vector<const hostmem::LandingRegion*> parts;
  for (const hostmem::LandingRegion& region : vram_->landing()) parts.push_back(&region);
  return gpu::hand_over(kept, parts, *keeper_);
}

/// Hands VRAM to the process, or to a keeper if the job stays suspended.
Status Course::hand_over_vram(const proto::RestoreRequest& request) {
  if (plan_.kept) return phases_.time("vram", "keep", [&] { return keep_vram(request); });
  GCR_ASSIGN(auto descriptors, vram_->descriptors());
  GCR_ASSIGN(auto of_members, job_.split(std::move(descriptors)));
  return process_->attach(std::move(of_members), vram_->driver(), [this] { vram_->let_go(); });
}

/// Votes. The process is frozen before the vote is in the journal, and the vote is in the journal
/// before the source gets the reply.
Status Course::vote(const proto::RestoreRequest& request, proto::RestoreReply& reply) {
  identity_ = process_->identity();
  GCR_TRY(hand_over_vram(request));
  GCR_TRY(fault::point("destination.attached"));
  GCR_TRY(process_->stop_and_freeze());
  GCR_ASSIGN(auto refused, process_->apply_settings(request.members()));
  for (std::string& note : refused) reply.add_notes(std::move(note));
  GCR_TRY(fault::point("destination.stopped"));
  journal::Record record;
  *record.mutable_restored() = identity_;
  GCR_TRY(phases_.time("process", "write the vote", [&] {
    return log_->advance(commit::DestinationEvent::kRestored, std::move(record));
  }));
  process_->leave();
  return fault::point("destination.restored");
}

/// Destroys the copy, with the reason `cause_`.
Status Course::roll_back(commit::DestinationEvent why) {
  destroy();
  return finish::destroy_copy(*log_, group_, why, finish::aborted(cause_));
}

Status Course::commit(const proto::CommitRequest& request, proto::Envelope& reply) {
  GCR_TRY(expect(commit::DestinationState::kRestored, "CommitRequest"));
  if (request.migration_id() != to_bytes(migration_)) {
    return Error(Code::kProtocol, "CommitRequest names another migration");
  }
  const auto start = worker::Phases::Clock::now();
  journal::Record record;
  record.mutable_committed();
  GCR_ASSIGN(std::string killed,
             finish::release_copy(*log_, context_.config, group_,
                                  commit::DestinationEvent::kToldCommit, std::move(record)));
  if (log_->state() == commit::DestinationState::kAborted) {
    const auto& lost = log_->journal().last(journal::Record::kAborted)->aborted();
    cause_ = Error(Code::kNotFound, lost.message());
    GCR_TRY(roll_back(commit::DestinationEvent::kCopyLost));
    ended_ = true;
    reply.mutable_copy_lost()->set_reason(lost.message());
    return {};
  }
  released_ = std::move(killed);
  proto::CommitReply& committed = *reply.mutable_commit_reply();
  committed.set_pid(journal::root_pid(identity_.members()));
  for (const auto& member : identity_.members()) committed.add_pids(member.pid());
  committed.set_resume_ms(in_milliseconds(worker::Phases::Clock::now() - start));
  if (!released_->empty()) committed.add_notes(*released_);
  GCR_TRY(fault::point("destination.resumed"));
  ended_ = true;
  return {};
}

Status Course::abort(const proto::AbortRequest& request) {
  cause_ = Error(Code::kCancelled,
                 "the source aborted the migration: " + control::printable(request.reason()));
  spdlog::info("{}", cause_.message());
  if (log_ && log_->state() == commit::DestinationState::kRestored) {
    GCR_TRY(roll_back(commit::DestinationEvent::kToldAbort));
  }
  ended_ = true;
  return {};
}

std::optional<registry::Outcome> Course::conclude() {
  const Status settled = log_ ? settle() : Status();
  if (!settled) {
    spdlog::error("cannot finish the migration on this host, a recovery continues: {}",
                  settled.error().message());
  }
  if (!plan_.is_migration) return std::nullopt;
  const bool migrated = released_.has_value();
  const bool unfinished = log_ && journal::unfinished(log_->journal().records());
  report_.set_migration_id(to_bytes(migration_));
  report_.set_migrated(migrated);
  report_.set_committed(migrated);
  report_.set_recovering(!migrated && unfinished);
  if (migrated) {
    report_.set_destination_pid(journal::root_pid(identity_.members()));
    report_.set_processes(static_cast<std::uint32_t>(identity_.members().size()));
  } else {
    report_.set_code(std::string(to_string(cause_.code())));
    report_.set_message(cause_.message());
  }
  return commit::outcome_for_daemon(
      plan_.began, std::move(report_),
      unfinished ? registry::Outcome::UNFINISHED : registry::Outcome::NOTHING,
      log_ ? log_->write_errors() : 0);
}

Status Course::settle() {
  if (released_) {
    destroy();
    GCR_TRY(finish::finish_running(*log_, *released_));
    finish::announce_again(plan_.began);
    return {};
  }
  if (log_->state() != commit::DestinationState::kBuilding) return {};
  return roll_back(commit::DestinationEvent::kFailed);
}

}  // namespace gcr::migration::destination

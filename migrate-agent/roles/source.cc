// The source's course: examine, prepare, switch over, commit. proto/PROTOCOL.md has the state
// machine; SourceProcess::State says how far the process has been taken apart, and every failure
// before the commit leads back to a running process.
#include <fmt/format.h>
#include <openssl/rand.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <set>

#include "migrate-agent/process/inspect.h"
#include "migrate-agent/process/procfs.h"
#include "migrate-agent/roles/host_facts.h"
#include "migrate-agent/roles/images.h"
#include "migrate-agent/roles/phases.h"
#include "migrate-agent/roles/roles.h"
#include "migrate-agent/roles/source_process.h"
#include "src/base/log.h"
#include "transport/tcp/tcp.h"

namespace gcr::agent {
namespace {

using asio::awaitable;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kConnectTimeout{10};
constexpr seconds kReplyTimeout{120};
/// A restore is never given up: the destination may be inside the driver (facts: never time it
/// out).
constexpr seconds kRestoreTimeout{1800};
constexpr seconds kGateTimeout{10};
constexpr seconds kLockTimeout{10};

std::string join(const std::vector<proto::Blocker>& blockers) {
  std::string text;
  for (const proto::Blocker& blocker : blockers) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} [{}]", blocker.text(), blocker.id());
  }
  return text;
}

proto::Blocker blocker(const char* id, std::string text) {
  proto::Blocker blocker;
  blocker.set_id(id);
  blocker.set_text(std::move(text));
  return blocker;
}

/// A thread of `pid` as its own PID namespace numbers it. The driver may number threads as the
/// caller sees them, which differs for a process that was restored into a namespace of its own.
pid_t in_own_namespace(pid_t pid, pid_t tid) {
  const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
  return pids.empty() ? tid : pids.back();
}

/// What the preload library says that stands in the way.
std::vector<proto::Blocker> door_blockers(const door::Summary& summary) {
  std::vector<proto::Blocker> blockers;
  if ((summary.blockers & door::kManagedMemory) != 0) {
    blockers.push_back(blocker("managed-memory",
                               "the process uses managed memory (cuMemAllocManaged), which the "
                               "driver cannot checkpoint"));
  }
  if ((summary.blockers & (door::kIpcExported | door::kIpcImported)) != 0) {
    blockers.push_back(blocker("ipc-memory",
                               "the process shares GPU memory with another one by legacy IPC: end "
                               "the sharing first"));
  }
  if ((summary.blockers & door::kForeignHandles) != 0) {
    blockers.push_back(blocker("foreign-handles",
                               "the process shares GPU memory with another one by exported "
                               "handles: end the sharing first"));
  }
  return blockers;
}

class Source {
 public:
  Source(WorkerContext& context, proto::MigrateRequest request)
      : context_(context), request_(std::move(request)), phases_("source", start_) {}

  awaitable<void> run();

 private:
  awaitable<Status> migrate();
  awaitable<Status> examine();
  awaitable<Status> open_peer();
  awaitable<Status> preflight();
  awaitable<Status> prepare();
  awaitable<Status> switch_over();
  awaitable<Status> refresh_buffers();
  awaitable<Status> send_vram();
  awaitable<Status> send_control_state();
  awaitable<Status> restore_there();
  awaitable<Status> commit();
  awaitable<Status> give_up(Error cause);
  awaitable<void> tell(const char* phase, std::string text);

  Status take_over(const std::vector<std::uint64_t>& ids);
  Status assign_regions(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions);
  void describe(proto::Buffer& out, const door::DoorEntry& entry) const;

  WorkerContext& context_;
  proto::MigrateRequest request_;
  Uuid migration_ = Uuid::random();
  Phases::Clock::time_point start_ = Phases::Clock::now();
  Phases::Clock::time_point gate_closed_at_{};
  Phases phases_;
  proto::MigrateReport report_;

  std::shared_ptr<const mover::CudaDriver> driver_;
  control::Endpoint destination_;
  std::optional<SourceProcess> process_;
  std::map<mover::BufferId, door::DoorEntry> inventory_;
  proto::ProcessFacts facts_;
  std::unique_ptr<control::ControlChannel> peer_;
  std::array<std::byte, 32> key_bytes_{};
  std::optional<digest::DigestKey> key_;
  std::optional<ScratchDirectory> images_;
  std::optional<mover::OutgoingVram> vram_;
  std::unique_ptr<transport::Channel> channel_;
};

awaitable<void> Source::tell(const char* phase, std::string text) {
  context_.daemon.report_phase(phase);
  proto::Envelope envelope;
  envelope.mutable_event()->set_phase(phase);
  envelope.mutable_event()->set_text(std::move(text));
  // An operator who is gone does not stop a migration that is under way.
  const Status sent = co_await context_.channel.send(envelope);
  if (!sent) spdlog::info("the operator is gone: {}", sent.error().message());
}

awaitable<void> Source::run() {
  report_.set_migration_id(to_bytes(migration_));
  const Status migrated = co_await migrate();
  report_.set_migrated(migrated.has_value());
  if (!migrated) {
    report_.set_code(std::string(to_string(migrated.error().code())));
    report_.set_message(migrated.error().message());
    spdlog::error("migration {} of process {}: {}", migration_.to_string(), request_.pid(),
                  migrated.error().message());
  }
  report_.set_total_ms(Phases::milliseconds(Phases::Clock::now() - start_));
  auto source_phases = phases_.list();
  for (proto::PhaseTime& phase : source_phases) *report_.add_phases() = std::move(phase);
  context_.daemon.report_outcome(report_.migrated(), report_.message());
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report_;
  const Status sent = co_await context_.channel.send(envelope);
  if (!sent) spdlog::warn("nobody took the report: {}", sent.error().message());
}

awaitable<Status> Source::migrate() {
  GCR_CO_TRY(co_await examine());
  GCR_CO_TRY(co_await open_peer());
  GCR_CO_TRY(co_await preflight());
  if (Status prepared = co_await prepare(); !prepared) co_return co_await give_up(prepared.error());
  if (Status moved = co_await switch_over(); !moved) co_return co_await give_up(moved.error());
  co_return co_await commit();
}

awaitable<Status> Source::examine() {
  co_await tell("preflight", fmt::format("examining process {}", request_.pid()));
  auto endpoint = control::Endpoint::parse(request_.destination());
  GCR_CO_TRY(endpoint);
  destination_ = *endpoint;
  const pid_t pid = request_.pid();
  GCR_CO_ASSIGN(const std::uint64_t started, process::start_time(pid));
  const Status claimed = co_await context_.daemon.claim_process(migration_, pid, started);
  GCR_CO_TRY(claimed);
  co_return co_await offload(context_.blocking, [&]() -> Status {
    const Phases::Timer timer(phases_, "examine");
    GCR_ASSIGN(auto inspection, process::inspect(pid));
    std::vector<proto::Blocker> blockers = std::move(inspection.blockers);
    for (std::string& warning : inspection.warnings) report_.add_notes(std::move(warning));
    facts_ = std::move(inspection.facts);
    auto door = Door::open(pid);
    if (!door) {
      blockers.push_back(blocker("no-door", door.error().message()));
      return Error(Code::kRefused, join(blockers));
    }
    GCR_ASSIGN(const door::Summary summary, door->hello());
    for (proto::Blocker& found : door_blockers(summary)) blockers.push_back(std::move(found));
    if (!blockers.empty()) return Error(Code::kRefused, join(blockers));
    facts_.set_door_tid(summary.door_tid);
    GCR_ASSIGN(driver_, mover::CudaDriver::load());
    const mover::ControlCheckpoint control(driver_, pid);
    GCR_ASSIGN(const pid_t restore_thread, control.restore_thread());
    facts_.set_cuda_restore_tid(in_own_namespace(pid, restore_thread));
    GCR_ASSIGN(const auto entries, door->inventory());
    for (const door::DoorEntry& entry : entries) inventory_.emplace(entry.id, entry);
    process_.emplace(driver_, criu::Command{context_.config.criu_command}, pid, std::move(*door));
    return {};
  });
}

awaitable<Status> Source::open_peer() {
  auto connected = co_await control::ControlChannel::connect(
      destination_, {control::ConnectionKind::kControl, migration_}, context_.tls, kConnectTimeout,
      context_.config.host);
  GCR_CO_TRY(connected);
  peer_ = std::move(*connected);
  co_return Status();
}

void Source::describe(proto::Buffer& out, const door::DoorEntry& entry) const {
  out.set_id(entry.id);
  out.set_size_bytes(entry.size_bytes);
  out.set_gpu_uuid(reinterpret_cast<const char*>(entry.device_uuid), sizeof(entry.device_uuid));
}

awaitable<Status> Source::preflight() {
  const Phases::Timer timer(phases_, "preflight");
  proto::Envelope envelope;
  proto::PreflightRequest& request = *envelope.mutable_preflight_request();
  request.set_migration_id(to_bytes(migration_));
  *request.mutable_process() = facts_;
  for (const auto& [id, entry] : inventory_) describe(*request.add_buffers(), entry);
  const Status looked = co_await offload(context_.blocking, [&]() -> Status {
    *request.mutable_host() = host_facts(context_.config, *driver_);
    return {};
  });
  GCR_CO_TRY(looked);
  auto reply = co_await peer_->call(envelope, kReplyTimeout);
  GCR_CO_TRY(reply);
  const proto::PreflightReply& answer = reply->preflight_reply();
  for (const std::string& warning : answer.warnings()) report_.add_notes(warning);
  if (answer.blockers_size() > 0) {
    co_return Error(Code::kRefused, join({answer.blockers().begin(), answer.blockers().end()}));
  }
  co_return Status();
}

Status Source::take_over(const std::vector<std::uint64_t>& ids) {
  GCR_ASSIGN(auto exported, process_->door().export_buffers(ids));
  for (auto& [entry, descriptor] : exported) {
    Uuid gpu;
    std::memcpy(gpu.bytes.data(), entry.device_uuid, gpu.bytes.size());
    GCR_TRY(vram_->add(entry.id, gpu, entry.size_bytes, std::move(descriptor)));
  }
  return {};
}

Status Source::assign_regions(
    const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  std::set<mover::BufferId> assigned;
  for (const proto::BufferRegion& region : regions) {
    if (!vram_->contains(region.buffer_id()) || !assigned.insert(region.buffer_id()).second) {
      return Error(Code::kProtocol, "the destination prepared a buffer that was not asked for");
    }
    vram_->assign(region.buffer_id(), region.region());
  }
  return {};
}

awaitable<Status> Source::prepare() {
  const Phases::Timer timer(phases_, "prepare");
  co_await tell("prepare", fmt::format("preparing {} buffers at {}", inventory_.size(),
                                       destination_.to_string()));
  if (RAND_bytes(reinterpret_cast<unsigned char*>(key_bytes_.data()),
                 static_cast<int>(key_bytes_.size())) != 1) {
    co_return Error(Code::kInternal, "OpenSSL gives no random bytes for the digest key");
  }
  proto::Envelope envelope;
  proto::PrepareRequest& request = *envelope.mutable_prepare_request();
  for (const auto& [id, entry] : inventory_) describe(*request.add_buffers(), entry);
  request.set_lanes(request_.lanes() != 0 ? request_.lanes() : context_.config.lanes);
  request.set_digest_key(key_bytes_.data(), key_bytes_.size());
  const Status taken = co_await offload(context_.blocking, [&]() -> Status {
    key_ = digest::DigestKey::expand(key_bytes_);
    GCR_ASSIGN(images_, ScratchDirectory::create(context_.config.runtime_dir / "outgoing" /
                                                 migration_.to_string()));
    vram_.emplace(driver_);
    std::vector<std::uint64_t> ids;
    for (const auto& [id, entry] : inventory_) ids.push_back(id);
    return take_over(ids);
  });
  GCR_CO_TRY(taken);
  auto reply = co_await peer_->call(envelope, kReplyTimeout);
  GCR_CO_TRY(reply);
  const proto::PrepareReply& answer = reply->prepare_reply();
  for (const std::string& note : answer.notes()) report_.add_notes(note);
  GCR_CO_TRY(assign_regions(answer.regions()));
  co_return co_await offload(context_.blocking, [&]() -> Status {
    const auto preface = control::Preface{control::ConnectionKind::kData, migration_}.encode();
    const auto preface_bytes = std::as_bytes(std::span(preface));
    GCR_ASSIGN(channel_,
               transport::connect(
                   destination_.host, destination_.port,
                   {.lanes = std::clamp(answer.lanes(), 1U, kMaxLanes),
                    .tls = context_.data_ssl(),
                    .verify_peer =
                        [this](SSL* ssl) { return control::verify_agent(ssl, destination_.host); },
                    .token = answer.data_token(),
                    .preface = {preface_bytes.begin(), preface_bytes.end()}}));
    return {};
  });
}

awaitable<Status> Source::switch_over() {
  using asio::experimental::awaitable_operators::operator&&;
  co_await tell("switchover", "closing the gate");
  report_.set_source_touched(true);
  gate_closed_at_ = Phases::Clock::now();
  const Status gated = co_await offload(context_.blocking, [&] {
    return phases_.time("close gate", [&] { return process_->close_gate(kGateTimeout); });
  });
  GCR_CO_TRY(gated);
  GCR_CO_TRY(co_await refresh_buffers());
  const Status detached = co_await offload(context_.blocking, [&] {
    return phases_.time("detach VRAM", [&] { return process_->detach(); });
  });
  GCR_CO_TRY(detached);
  // The mover holds VRAM now: the copy, and the checkpoint and dump of the process, go side by
  // side.
  auto [vram_sent, control_sent] = co_await (send_vram() && send_control_state());
  // A destination that gives up says why on the control channel; its data connections only break.
  GCR_CO_TRY(control_sent);
  GCR_CO_TRY(vram_sent);
  co_return co_await restore_there();
}

awaitable<Status> Source::refresh_buffers() {
  proto::Envelope envelope;
  proto::BuffersRequest& request = *envelope.mutable_buffers_request();
  const Status compared = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(const door::Summary summary, process_->door().hello());
    if (auto blockers = door_blockers(summary); !blockers.empty()) {
      return Error(Code::kRefused, join(blockers));
    }
    GCR_ASSIGN(const auto entries, process_->door().inventory());
    std::map<mover::BufferId, door::DoorEntry> now;
    std::vector<std::uint64_t> added;
    for (const door::DoorEntry& entry : entries) {
      now.emplace(entry.id, entry);
      if (inventory_.contains(entry.id)) continue;
      added.push_back(entry.id);
      describe(*request.add_added(), entry);
    }
    for (const auto& [id, entry] : inventory_) {
      if (now.contains(id)) continue;
      request.add_removed_ids(id);
      vram_->remove(id);
    }
    inventory_ = std::move(now);
    return take_over(added);
  });
  GCR_CO_TRY(compared);
  if (request.added_size() == 0 && request.removed_ids_size() == 0) co_return Status();
  auto reply = co_await peer_->call(envelope, kReplyTimeout);
  GCR_CO_TRY(reply);
  co_return assign_regions(reply->buffers_reply().regions());
}

awaitable<Status> Source::send_vram() {
  co_return co_await offload(context_.blocking, [&]() -> Status {
    const Phases::Timer timer(phases_, "send VRAM");
    GCR_TRY(vram_->send(*channel_, *key_));
    report_.set_buffers(vram_->count());
    report_.set_vram_bytes(vram_->total_bytes());
    return {};
  });
}

awaitable<Status> Source::send_control_state() {
  std::vector<ImageFile> files;
  const Status dumped = co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(phases_.time("control checkpoint",
                         [&] { return process_->lock_and_checkpoint(kLockTimeout); }));
    GCR_TRY(phases_.time("criu dump", [&] { return process_->dump(images_->path()); }));
    GCR_ASSIGN(files, list_images(images_->path()));
    return {};
  });
  GCR_CO_TRY(dumped);
  proto::Envelope envelope;
  for (const ImageFile& file : files) {
    proto::ImageFile& out = *envelope.mutable_images_request()->add_files();
    out.set_name(file.name);
    out.set_size_bytes(file.size_bytes);
  }
  auto reply = co_await peer_->call(envelope, kReplyTimeout);
  GCR_CO_TRY(reply);
  const auto& regions = reply->images_reply().regions();
  if (regions.size() != static_cast<int>(files.size())) {
    co_return Error(Code::kProtocol, "the destination did not take every image file");
  }
  co_return co_await offload(context_.blocking, [&]() -> Status {
    const Phases::Timer timer(phases_, "send images");
    GCR_ASSIGN(const std::uint64_t sent,
               send_images(*channel_, images_->path(), files, {regions.begin(), regions.end()},
                           channel_->lanes()));
    report_.set_sent_image_bytes(sent);
    return {};
  });
}

awaitable<Status> Source::restore_there() {
  report_.set_sent_vram_bytes(channel_->statistics().payload_bytes - report_.sent_image_bytes());
  proto::Envelope envelope;
  std::uint64_t chunks = 0;
  for (const auto& [id, digests] : vram_->digests()) {
    proto::BufferDigests& out = *envelope.mutable_restore_request()->add_digests();
    out.set_buffer_id(id);
    out.set_digests(digests.data(), digests.size() * sizeof(digest::Digest));
    chunks += digests.size();
  }
  envelope.mutable_restore_request();
  co_await tell("restore", fmt::format("restoring at {}", destination_.to_string()));
  const Phases::Timer timer(phases_, "restore at the destination");
  const double asked_at_ms = Phases::milliseconds(Phases::Clock::now() - start_);
  auto reply = co_await peer_->call(envelope, kRestoreTimeout);
  GCR_CO_TRY(reply);
  const proto::RestoreReply& answer = reply->restore_reply();
  if (answer.verified_chunks() != chunks) {
    co_return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                                 answer.verified_chunks(), chunks));
  }
  report_.set_verified(true);
  for (proto::PhaseTime phase : answer.phases()) {
    phase.set_start_ms(phase.start_ms() + asked_at_ms);
    *report_.add_phases() = std::move(phase);
  }
  co_return Status();
}

awaitable<Status> Source::commit() {
  // From here on the source's copy never runs again, whatever becomes of the answer.
  report_.set_committed(true);
  proto::Envelope envelope;
  envelope.mutable_commit_request();
  auto reply = co_await peer_->call(envelope, kReplyTimeout);
  report_.set_downtime_ms(Phases::milliseconds(Phases::Clock::now() - gate_closed_at_));
  if (!reply) {
    co_return reply.error().while_doing(
        "the commit was sent but not confirmed; the stopped process is kept at the source");
  }
  report_.set_destination_pid(reply->commit_reply().pid());
  const Status released = co_await offload(context_.blocking, [&]() -> Status {
    const Phases::Timer timer(phases_, "release source");
    GCR_TRY(process_->kill());
    vram_.reset();
    images_.reset();
    return {};
  });
  if (!released) report_.add_notes("at the source: " + released.error().message());
  co_await tell("commit", fmt::format("process {} runs at {}", reply->commit_reply().pid(),
                                      destination_.to_string()));
  co_return Status();
}

awaitable<Status> Source::give_up(Error cause) {
  if (channel_ != nullptr) channel_->cancel();
  const Status resumed = co_await offload(context_.blocking, [&]() -> Status {
    mover::Descriptors descriptors;
    if (process_->state() > SourceProcess::State::kGated) {
      GCR_ASSIGN(descriptors, vram_->descriptors());
    }
    return process_->roll_back(std::move(descriptors));
  });
  proto::Envelope envelope;
  envelope.mutable_abort_request()->set_reason(cause.message());
  auto aborted = co_await peer_->call(envelope, kReplyTimeout);
  if (!aborted) spdlog::info("no answer to the abort: {}", aborted.error().message());
  co_await offload(context_.blocking, [&]() -> Status {
    channel_.reset();
    vram_.reset();
    images_.reset();
    return {};
  });
  if (!resumed) {
    co_return Error(Code::kInternal, fmt::format("{}; and the source could not be resumed: {}",
                                                 cause.message(), resumed.error().message()));
  }
  co_return cause;
}

}  // namespace

awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request) {
  Source source(context, std::move(request));
  co_await source.run();
}

}  // namespace gcr::agent

// The source's steps before anything is copied: it looks at the process, asks the destination, and
// makes everything ready on both sides.
#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <set>

#include "migrate-agent/data/offer.h"
#include "migrate-agent/data/outgoing_data.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/journal/journal_files.h"
#include "migrate-agent/preflight/host_facts.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/roles/source.h"
#include "migrate-agent/settlement/records.h"
#include "src/base/log.h"

namespace gcr::agent {
namespace {

constexpr unsigned kClockSamples = 8;
/// A process that frees buffers all the time is looked at this often.
constexpr unsigned kAttempts = 100;

proto::Buffer describe(const job::Allocation& allocation) {
  proto::Buffer buffer;
  buffer.set_id(allocation.id.value);
  buffer.set_size_bytes(allocation.size_bytes);
  buffer.set_gpu_uuid(to_bytes(allocation.gpu));
  for (const job::Mapping& mapping : allocation.mapped_by) {
    proto::Mapping& out = *buffer.add_mapped_by();
    out.set_member(mapping.member.value);
    out.set_local_id(mapping.local_id);
  }
  return buffer;
}

}  // namespace

using asio::awaitable;

/// Nobody else moves the process from now on. What is refused after that leaves no journal.
awaitable<Status> Source::claim_process() {
  GCR_CO_ASSIGN(destination_, control::Endpoint::parse(request_.destination()));
  GCR_CO_ASSIGN(claimed_, context_.permissions.check_process(request_.pid()));
  members_.Add()->set_pid(request_.pid());
  members_[0].set_start_time(claimed_.start_time);
  const Status claimed = co_await context_.daemon.claim_processes(
      migration_, members_, context_.channel.peer().common_name);
  GCR_CO_TRY(claimed);
  GCR_CO_ASSIGN(handle_, procfs::Process::open(request_.pid(), claimed_.start_time));
  co_return Status();
}

/// Makes the migration one that survives this worker: a journal, and a name by which others reach
/// it. Nothing was done to the process yet.
awaitable<Status> Source::begin() {
  journal::Began began = description();
  began.set_peer(destination_.to_string());
  const Status created = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(log_, commit::SourceLog::create(context_.config.state_dir, migration_, began));
    return {};
  });
  GCR_CO_TRY(created);
  driver_ = std::move(found_->host.driver);
  facts_ = std::move(found_->process);
  std::vector<LocalAllocation> local;
  for (const auto& [id, allocation] : found_->inventory) local.push_back(allocation);
  (void)job_.follow(job::kRoot, local);
  process_.emplace(*driver_, *handle_, std::move(found_->access),
                   settlement::group_of(log_->journal()));
  found_.reset();
  GCR_CO_TRY(context_.line.open(migration_, journal::Began::SOURCE));
  GCR_CO_TRY(co_await offload(context_.blocking, [&] { return check_alone(); }));
  proto::Envelope envelope;
  envelope.mutable_started()->set_migration_id(to_bytes(migration_));
  operator_.tell(std::move(envelope));
  co_return fault::point("source.began");
}

/// A daemon that was started after the process was claimed knows of no claim, and may have let
/// somebody else have the process. Whoever is at a migration has a name by now: of two, the later
/// one at least sees the other.
Status Source::check_alone() const {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const auto& name : fs::directory_iterator(context_.config.runtime_dir / "workers", error)) {
    const auto other = journal::entry_of(name.path());
    if (!other || other->role != journal::Began::SOURCE || other->migration == migration_) continue;
    const auto contents =
        journal::peek(journal::path_of(context_.config.state_dir, other->migration, other->role));
    if (!contents || contents->damage || !journal::unfinished(contents->records)) continue;
    for (const journal::ProcessId& theirs : contents->records.front().began().members()) {
      const auto is_theirs = [&theirs](const journal::ProcessId& ours) {
        return ours.pid() == theirs.pid() && ours.start_time() == theirs.start_time();
      };
      if (std::ranges::none_of(members_, is_theirs)) continue;
      return Error(Code::kRefused, fmt::format("migration {} has process {}",
                                               other->migration.to_string(), theirs.pid()));
    }
  }
  return {};
}

awaitable<Status> Source::examine_process() {
  const Phases::Timer timer(phases_, "course", "preflight");
  tell("preflight", fmt::format("examining process {}", request_.pid()));
  const Status examined = co_await offload(context_.blocking, [&]() -> Status {
    found_.emplace(
        phases_.time("process", "examine", [&] { return examine(request_, context_.config); }));
    return {};
  });
  GCR_CO_TRY(examined);
  // The destination learns nothing of a process that cannot be moved.
  co_return judge(found_->findings.list());
}

/// Tells the operator of warnings; an error if there is a blocker.
Status Source::judge(const std::vector<proto::Finding>& findings) {
  for (const proto::Finding& finding : findings) {
    if (!preflight::is_blocker(finding)) report_.add_notes(preflight::note_of(finding));
  }
  std::string reason = preflight::reason_of(findings);
  if (reason.empty()) return {};
  return Error(Code::kRefused, std::move(reason));
}

awaitable<Status> Source::open_peer() {
  auto connected = co_await control::ControlChannel::connect(
      destination_, {control::ConnectionKind::kControl, migration_}, context_.tls, kConnectTimeout,
      context_.config.host);
  GCR_CO_TRY(connected);
  peer_ = std::make_unique<PeerLink>(context_.io, std::move(*connected),
                                     context_.config.peer_silence());
  co_return fault::point("source.connected");
}

/// The offset of the two monotonic clocks, from the quickest of several questions: the answer was
/// given somewhere between asking and hearing, most likely in the middle (as NTP reckons, RFC
/// 5905).
awaitable<Status> Source::compare_clocks() {
  using Clock = Phases::Clock;
  Clock::duration quickest = Clock::duration::max();
  proto::Envelope question;
  question.mutable_clock_request();
  for (unsigned i = 0; i < kClockSamples; ++i) {
    const auto asked = Clock::now();
    auto reply = co_await peer_->call(question);
    const auto trip = Clock::now() - asked;
    GCR_CO_TRY(reply);
    if (trip >= quickest) continue;
    quickest = trip;
    const Clock::time_point there{std::chrono::nanoseconds(reply->clock_reply().monotonic_ns())};
    clock_offset_ = there - (asked + trip / 2);
  }
  report_.set_clock_offset_ms(Phases::milliseconds(clock_offset_));
  report_.set_clock_error_ms(Phases::milliseconds(quickest) / 2);
  co_return Status();
}

awaitable<Status> Source::preflight() {
  const Phases::Timer timer(phases_, "course", "preflight at both sides");
  proto::Envelope envelope;
  proto::PreflightRequest& request = *envelope.mutable_preflight_request();
  request = preflight_request(*found_, request_, context_.config);
  request.set_migration_id(to_bytes(migration_));
  request.set_ordered_by(context_.channel.peer().common_name);
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  // Not before: the connection begins with this request, and with no sign of life.
  peer_->watch([this](const Error& error) { interrupt(error); });
  const auto& theirs = reply->preflight_reply().findings();
  GCR_CO_TRY(judge({theirs.begin(), theirs.end()}));
  // What was examined by its number was the claimed process, if that has not been reaped.
  if (handle_->has_ended()) {
    co_return Error(Code::kNotFound, "the process ended while it was examined");
  }
  co_return fault::point("source.preflighted");
}

/// What a member has exported, and the job knows.
Status Source::take_over(std::vector<ExportedAllocation> exported, proto::BuffersRequest& changes) {
  for (auto& [local, descriptor] : exported) {
    const job::AllocationId id = *job_.find({job::kRoot, local.local_id});
    if (vram_->contains(id)) continue;
    const job::Allocation& allocation = job_.allocations().at(id);
    GCR_TRY(vram_->add(id, allocation.gpu, allocation.size_bytes, std::move(descriptor)));
    *changes.add_added() = describe(allocation);
  }
  return {};
}

Status Source::assign_regions(
    const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  std::set<job::AllocationId> assigned;
  for (const proto::BufferRegion& region : regions) {
    const job::AllocationId id{region.buffer_id()};
    if (!vram_->contains(id) || !assigned.insert(id).second) {
      return Error(Code::kProtocol, "the destination prepared a buffer that was not asked for");
    }
    vram_->assign(id, region.region());
  }
  return {};
}

/// The journal knows the keeper before it holds anything.
Status Source::start_keeper() {
  GCR_ASSIGN(keeper_,
             keeper::Keeper::start(context_.config.criu.reaper.parent_path() / "gcr-keeper"));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = keeper_->id();
  return log_->advance(commit::SourceEvent::kKeeperStarted, std::move(record));
}

/// From here on VRAM outlives this worker. Costs little where the keeper has all of it already: it
/// is armed before the gate closes, and by another one if the process has allocated or freed since.
Status Source::arm_keeper() {
  GCR_ASSIGN(const mover::Descriptors descriptors, vram_->descriptors());
  std::vector<job::Mapping> mappings;
  std::vector<keeper::BufferDescriptor> wanted;
  for (const auto& [id, descriptor] : descriptors) {
    for (const job::Mapping& mapping : job_.allocations().at(id).mapped_by) {
      mappings.push_back(mapping);
      wanted.push_back({mapping, descriptor.get()});
    }
  }
  if (kept_ && *kept_ == mappings) return {};
  if (std::exchange(kept_, std::nullopt)) {
    GCR_TRY(keeper_->end());
    GCR_TRY(start_keeper());
  }
  GCR_TRY(keeper_->arm(wanted));
  kept_ = std::move(mappings);
  return {};
}

awaitable<Status> Source::prepare() {
  const Phases::Timer timer(phases_, "course", "prepare");
  tell("prepare", fmt::format("preparing {} buffers at {}", job_.allocations().size(),
                              destination_.to_string()));
  if (RAND_bytes(reinterpret_cast<unsigned char*>(key_bytes_.data()),
                 static_cast<int>(key_bytes_.size())) != 1) {
    co_return Error(Code::kInternal, "OpenSSL gives no random bytes for the digest key");
  }
  proto::Envelope envelope;
  proto::PrepareRequest& request = *envelope.mutable_prepare_request();
  wish_ = {request_.transport(), request_.plaintext(),
           request_.lanes() != 0 ? request_.lanes() : context_.config.lanes};
  offer_ = data_offer(context_.config.unencrypted_data);
  request.set_lanes(wish_.lanes);
  request.set_transport(wish_.transport);
  request.set_plaintext(wish_.plaintext);
  *request.mutable_offer() = offer_;
  request.set_digest_key(key_bytes_.data(), key_bytes_.size());
  request.set_no_prefill(request_.no_prefill());
  const Status taken = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(scratch_, images::ScratchDirectory::create(context_.config.runtime_dir / "outgoing" /
                                                          migration_.to_string()));
    GCR_ASSIGN(images_, OutgoingImages::create(context_.config.criu, *process_, scratch_->path(),
                                               request_.image_mode(), facts_.resident_bytes()));
    vram_.emplace(driver_, digest::DigestKey::expand(key_bytes_));
    proto::BuffersRequest found;
    GCR_TRY(follow_allocations(found));
    *request.mutable_buffers() = std::move(*found.mutable_added());
    return start_keeper();
  });
  GCR_CO_TRY(taken);
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  const proto::PrepareReply& answer = reply->prepare_reply();
  for (const std::string& note : answer.notes()) report_.add_notes(note);
  GCR_CO_TRY(assign_regions(answer.regions()));
  image_region_ = {answer.image_region(), answer.image_region_bytes()};
  co_return co_await open_channel(answer);
}

awaitable<Status> Source::open_channel(proto::PrepareReply prepared) {
  std::vector<std::string> notes;
  const auto open = [&]() -> Status {
    GCR_ASSIGN(channel_, agent::open_channel(prepared,
                                             {.migration = migration_,
                                              .destination = destination_,
                                              .wish = wish_,
                                              .offer = offer_,
                                              .tls = context_.data_ssl(),
                                              .peer_timeout = context_.config.peer_silence()},
                                             notes));
    return {};
  };
  Status opened = co_await offload(context_.blocking, open);
  if (!opened && opened.error().code() != Code::kProtocol &&
      prepared.transport() == proto::TRANSPORT_RDMA) {
    GCR_CO_TRY(co_await fall_back(prepared, opened.error()));
    opened = co_await offload(context_.blocking, open);
  }
  GCR_CO_TRY(opened);
  for (std::string& note : notes) report_.add_notes(std::move(note));
  report_.set_transport(prepared.transport() == proto::TRANSPORT_RDMA ? "rdma" : "tcp");
  report_.set_transport_reason(prepared.transport_reason());
  report_.set_encrypted(prepared.encrypted());
  report_.set_lanes(prepared.lanes());
  kind_ = kind_of_program(log_->journal().began().command());
  prefill_ = prepared.prefill();
  const Status remembered = co_await offload(context_.blocking, [&]() -> Status {
    steady_ = expect_downtime(context_.config.state_dir, kind_, prefill_);
    return {};
  });
  GCR_CO_TRY(remembered);
  precopy_.emplace(*vram_, *channel_, phases_, meter_, limits_);
  GCR_CO_TRY(co_await compare_clocks());
  GCR_CO_TRY(fault::point("source.prepared"));
  co_return check();
}

/// Changes `prepared` to TCP. The destination refuses where the operator wants RDMA and nothing
/// else.
awaitable<Status> Source::fall_back(proto::PrepareReply& prepared, const Error& why) {
  spdlog::info("{}", why.message());
  proto::Envelope envelope;
  envelope.mutable_fall_back_request()->set_reason(why.message());
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  const proto::FallBackReply& answer = reply->fall_back_reply();
  prepared.set_transport(proto::TRANSPORT_TCP);
  prepared.set_transport_reason(why.message());
  prepared.set_encrypted(answer.encrypted());
  *prepared.mutable_data_addresses() = answer.data_addresses();
  co_return Status();
}

/// Takes over what the process has allocated since the last look, and lets go of what it has freed;
/// `changes` says so to the destination. What is freed between the look and the taking shows as
/// kNotFound: then it looks again.
Status Source::follow_allocations(proto::BuffersRequest& changes) {
  GCR_ASSIGN(const AccessState state, process_->access().look());
  preflight::Findings findings(preflight::Side::kSource);
  check_access(state, findings);
  if (findings.has_blocker()) return Error(Code::kRefused, preflight::reason_of(findings.list()));
  for (unsigned attempt = 1;; ++attempt) {
    GCR_ASSIGN(const auto now, process_->access().allocations());
    std::vector<std::uint64_t> added;
    for (const LocalAllocation& allocation : now) {
      const auto known = job_.find({job::kRoot, allocation.local_id});
      if (!known || !vram_->contains(*known)) added.push_back(allocation.local_id);
    }
    auto exported = process_->access().take(added);
    if (!exported && exported.error().code() == Code::kNotFound && attempt < kAttempts) continue;
    if (!exported) return exported.error();
    const job::Job::Changes followed = job_.follow(job::kRoot, now);
    for (const job::AllocationId id : followed.removed) {
      if (!vram_->contains(id)) continue;
      changes.add_removed_ids(id.value);
      vram_->remove(id);
    }
    for (const job::AllocationId id : followed.remapped) {
      *changes.add_remapped() = describe(job_.allocations().at(id));
    }
    return take_over(std::move(*exported), changes);
  }
}

awaitable<Status> Source::refresh_buffers() {
  proto::Envelope envelope;
  proto::BuffersRequest& request = *envelope.mutable_buffers_request();
  const Status followed =
      co_await offload(context_.blocking, [&] { return follow_allocations(request); });
  GCR_CO_TRY(followed);
  if (request.ByteSizeLong() == 0) co_return Status();
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  co_return assign_regions(reply->buffers_reply().regions());
}

}  // namespace gcr::agent

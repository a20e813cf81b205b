// The destination's course: preflight, prepare, receive, restore, commit. proto/PROTOCOL.md has the
// state machine; `Destination::State` names its states. Whatever ends the course before the commit,
// destroying this object leaves nothing of the migration on this host.
#include <fmt/format.h>

#include <algorithm>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/steady_timer.hpp>

#include "migrate-agent/commit/commit_log.h"
#include "migrate-agent/data/incoming_data.h"
#include "migrate-agent/data/offer.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/images/scratch_directory.h"
#include "migrate-agent/images/store.h"
#include "migrate-agent/mover/incoming_vram.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/host_facts.h"
#include "migrate-agent/roles/peer_link.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/roles/restored_process.h"
#include "migrate-agent/roles/roles.h"
#include "src/base/log.h"
#include "transport/channel.h"

namespace gcr::agent {
namespace {

using asio::awaitable;
using std::chrono::seconds;

constexpr std::size_t kMaxBuffers = 65536;

constexpr transport::RegionId kImageRegion = 1;
constexpr unsigned kImageSlots = 64;

landing::HugepagePolicy landing_policy(HugepagePolicy policy) {
  switch (policy) {
    case HugepagePolicy::kRequire:
      return landing::HugepagePolicy::kRequire;
    case HugepagePolicy::kNever:
      return landing::HugepagePolicy::kNever;
    default:
      return landing::HugepagePolicy::kAuto;
  }
}

/// Images may take what is free where they go.
Result<std::unique_ptr<images::ImageStore>> open_store(const std::filesystem::path& directory,
                                                       const std::array<std::byte, 32>& secret) {
  std::error_code error;
  const auto space = std::filesystem::space(directory, error);
  if (error) {
    return Error::from_errno(error.value(),
                             fmt::format("cannot see how much is free in {}", directory.string()));
  }
  return images::ImageStore::create(directory, kImageSlots, space.available, secret);
}

class Destination {
 public:
  explicit Destination(WorkerContext& context) : context_(context) {}

  ~Destination() { destroy(); }

  awaitable<void> run(proto::PreflightRequest request);

 private:
  using Wanted = std::vector<mover::IncomingVram::Wanted>;
  /// See proto/PROTOCOL.md. Zero is never used.
  enum class State { kInvalid = 0, kPreflight, kPrepared, kRestored, kCommitted, kEnded };

  awaitable<void> serve();
  awaitable<void> take_data_connections();
  awaitable<Result<proto::Envelope>> answer(const proto::Envelope& request);
  awaitable<Result<proto::Envelope>> preflight(const proto::PreflightRequest& request);
  awaitable<Result<proto::Envelope>> prepare(const proto::PrepareRequest& request);
  Status make_room(const proto::PrepareRequest& request);
  Result<std::unique_ptr<IncomingData>> open_data(DataPlan& plan, const std::string& token);
  awaitable<Result<proto::Envelope>> fall_back(const proto::FallBackRequest& request);
  awaitable<Result<proto::Envelope>> change_buffers(const proto::BuffersRequest& request);
  awaitable<Result<proto::Envelope>> restore(const proto::RestoreRequest& request);
  Status restore_process(const proto::RestoreRequest& request, Phases& phases);
  awaitable<Result<proto::Envelope>> commit(const proto::CommitRequest& request);
  awaitable<Result<proto::Envelope>> abort(const proto::AbortRequest& request);
  awaitable<Result<proto::Envelope>> answer_alive(const proto::Envelope& request);
  awaitable<void> conclude();
  journal::Began description(const proto::PreflightRequest& request) const;
  Status vote(Phases& phases);
  void destroy();
  std::chrono::milliseconds silence() const {
    return std::chrono::milliseconds(context_.config.peer_silence_ms);
  }

  template <class Buffers>
  Result<Wanted> wanted(const Buffers& buffers) const;
  Status open_regions(const Wanted& wanted, IncomingData& data);
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);
  Status expect(State state, const char* request) const;

  WorkerContext& context_;
  State state_ = State::kPreflight;
  Uuid migration_;
  std::optional<commit::DestinationLog> log_;
  journal::Restored identity_;  ///< from the vote on
  Error cause_{Code::kCancelled, "the source ended it"};
  std::set<pid_t> running_;
  std::set<pid_t> used_pids_;
  std::shared_ptr<const mover::CudaDriver> driver_;
  std::vector<mover::GpuPair> gpu_map_;
  std::optional<mover::IncomingVram> vram_;
  std::optional<images::ScratchDirectory> scratch_;
  std::unique_ptr<images::ImageStore> images_;
  std::optional<criu::PreparedRestore> prepared_restore_;
  transport::RegionId next_region_ = kImageRegion + 1;
  // Written before a region is announced, read by the lanes' threads.
  std::mutex regions_mutex_;
  std::map<transport::RegionId, mover::BufferId> buffer_of_region_;
  std::map<mover::BufferId, transport::RegionId> region_of_buffer_;
  DataWish wish_;
  proto::DataOffer source_offer_;
  proto::DataOffer offer_;
  std::unique_ptr<IncomingData> data_;  ///< changed by the io_context's thread only
  std::unique_ptr<RestoredProcess> process_;
};

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

/// Says that we are alive until the answer is there: a restore may take long.
awaitable<Result<proto::Envelope>> Destination::answer_alive(const proto::Envelope& request) {
  AliveBeat beat(context_.io, context_.channel, silence());
  auto reply = co_await answer(request);
  co_await beat.stop();
  co_return reply;
}

/// What was not voted for is undone. What was voted for and not settled stands still, and recovery
/// asks the source.
awaitable<void> Destination::conclude() {
  if (!log_) co_return;
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
    return log_->advance(commit::DestinationEvent::kCleared, finished("nothing is left"));
  });
  if (!concluded) {
    spdlog::error("migration {}: {}", migration_.to_string(), concluded.error().message());
  }
}

/// Everything of the migration on this host; lanes write into landing memory and VRAM, so they end
/// first.
void Destination::destroy() {
  data_.reset();
  process_.reset();
  prepared_restore_.reset();
  images_.reset();
  vram_.reset();
  scratch_.reset();
}

awaitable<void> Destination::serve() {
  while (state_ != State::kCommitted && state_ != State::kEnded) {
    auto request = co_await context_.channel.receive(silence());
    if (!request) {
      cause_ = request.error().while_doing("the source was lost");
      spdlog::info("migration {}: {}", migration_.to_string(), cause_.message());
      co_return;
    }
    auto reply = co_await answer_alive(*request);
    proto::Envelope envelope;
    if (reply) {
      envelope = std::move(*reply);
    } else {
      spdlog::error("migration {}: {}", migration_.to_string(), reply.error().message());
      *envelope.mutable_failure() = control::to_failure(reply.error());
      cause_ = reply.error();
      state_ = State::kEnded;
    }
    const Status sent = co_await context_.channel.send(envelope);
    if (!sent) spdlog::warn("migration {}: {}", migration_.to_string(), sent.error().message());
  }
}

awaitable<void> Destination::take_data_connections() {
  for (;;) {
    auto socket = co_await context_.daemon.next_data_connection(seconds(3600));
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
      Error(Code::kCancelled, "the source gave it up: " + control::printable(request.reason()));
  spdlog::info("migration {}: {}", migration_.to_string(), cause_.message());
  if (state_ == State::kRestored) {
    GCR_CO_TRY(co_await offload(context_.blocking, [&]() -> Status {
      GCR_TRY(log_->advance(commit::DestinationEvent::kToldAbort, aborted(cause_)));
      GCR_TRY(recovery::destroy_restored(identity_.process(), identity_.init()));
      destroy();
      return log_->advance(commit::DestinationEvent::kCleared, finished("nothing is left"));
    }));
  }
  state_ = State::kEnded;
  proto::Envelope reply;
  reply.mutable_abort_reply();
  co_return reply;
}

/// The source is asked for the outcome where it says, or at the address that it came from.
journal::Began Destination::description(const proto::PreflightRequest& request) const {
  journal::Began began;
  const std::string& said = request.source_agent();
  const std::string from = context_.channel.peer_address();
  began.set_peer(said.starts_with(':') ? from.substr(0, from.rfind(':')) + said
                                       : control::printable(said));
  began.set_peer_name(context_.channel.peer().common_name);
  began.set_command(short_command(request.process().command()));
  return began;
}

awaitable<Result<proto::Envelope>> Destination::preflight(const proto::PreflightRequest& request) {
  GCR_CO_TRY(expect(State::kPreflight, "PreflightRequest"));
  if (request.buffers_size() > static_cast<int>(kMaxBuffers)) {
    co_return Error(Code::kProtocol, fmt::format("{} buffers are more than {}",
                                                 request.buffers_size(), kMaxBuffers));
  }
  migration_ = to_uuid(request.migration_id());
  running_ = {request.process().door_tid(), request.process().cuda_restore_tid()};
  used_pids_ = {request.process().used_pids().begin(), request.process().used_pids().end()};
  const Status registered = co_await context_.daemon.register_migration(migration_);
  GCR_CO_TRY(registered);
  const journal::Began began = description(request);
  GCR_CO_TRY(control::Endpoint::parse(began.peer()));
  const Status created = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(log_, commit::DestinationLog::create(context_.config.state_dir, migration_, began));
    return {};
  });
  GCR_CO_TRY(created);
  GCR_CO_TRY(context_.line.open(migration_, journal::Began::DESTINATION));
  GCR_CO_TRY(fault::point("destination.began"));
  proto::Envelope envelope;
  proto::PreflightReply& reply = *envelope.mutable_preflight_reply();
  const Status looked = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(driver_, mover::CudaDriver::load());
    vram_.emplace(driver_, landing_policy(context_.config.hugepages));
    *reply.mutable_host() = host_facts(context_.config, *driver_);
    Fit found = fit(request, reply.host(), context_.config, *vram_);
    for (proto::Blocker& blocker : found.blockers) *reply.add_blockers() = std::move(blocker);
    gpu_map_ = std::move(found.gpu_map);
    return {};
  });
  GCR_CO_TRY(looked);
  for (const mover::GpuPair& pair : gpu_map_) {
    proto::GpuPair& out = *reply.add_gpu_map();
    out.set_source_uuid(to_bytes(pair.from));
    out.set_destination_uuid(to_bytes(pair.to));
  }
  if (reply.blockers_size() > 0) {
    state_ = State::kEnded;
    cause_ = Error(Code::kRefused, reply.blockers(0).text());
  }
  GCR_CO_TRY(fault::point("destination.preflighted"));
  co_return envelope;
}

template <class Buffers>
Result<Destination::Wanted> Destination::wanted(const Buffers& buffers) const {
  if (region_of_buffer_.size() + buffers.size() > kMaxBuffers) {
    return Error(Code::kProtocol, fmt::format("more than {} buffers", kMaxBuffers));
  }
  std::vector<mover::IncomingVram::Wanted> wanted;
  std::uint64_t total = 0;
  GCR_ASSIGN(const std::uint64_t available, landing::available_memory_bytes());
  GCR_ASSIGN(const std::uint64_t huge, landing::free_hugepage_bytes());
  for (const proto::Buffer& buffer : buffers) {
    const Uuid from = to_uuid(buffer.gpu_uuid());
    const auto pair = std::find_if(gpu_map_.begin(), gpu_map_.end(),
                                   [&](const mover::GpuPair& p) { return p.from == from; });
    if (pair == gpu_map_.end() || buffer.size_bytes() == 0 ||
        buffer.size_bytes() % kChunkBytes != 0 || region_of_buffer_.contains(buffer.id())) {
      return Error(Code::kProtocol, fmt::format("buffer {} ({} bytes) cannot be prepared",
                                                buffer.id(), buffer.size_bytes()));
    }
    if (buffer.size_bytes() > available + huge - total) {
      return Error(Code::kResourceExhausted,
                   fmt::format("the landing region needs more than the {} that are available",
                               format_bytes(available + huge)));
    }
    total += buffer.size_bytes();
    wanted.push_back({buffer.id(), pair->to, buffer.size_bytes()});
  }
  return wanted;
}

Status Destination::open_regions(const Wanted& wanted, IncomingData& data) {
  for (const mover::IncomingVram::Wanted& buffer : wanted) {
    const transport::RegionId region = next_region_++;
    region_of_buffer_.emplace(buffer.id, region);
    {
      const std::lock_guard lock(regions_mutex_);
      buffer_of_region_.emplace(region, buffer.id);
    }
    GCR_TRY(data.add_region(region, vram_->landing(buffer.id)));
  }
  return {};
}

Status Destination::landed(transport::RegionId region, std::uint64_t offset,
                           std::uint64_t length_bytes) {
  if (region == kImageRegion) return images_->landed(offset, length_bytes);
  mover::BufferId buffer = 0;
  {
    const std::lock_guard lock(regions_mutex_);
    const auto found = buffer_of_region_.find(region);
    if (found == buffer_of_region_.end()) return {};  // removed while its last bytes came
    buffer = found->second;
  }
  return vram_->landed(buffer, offset, length_bytes);
}

/// What takes part in the migration before a connection does.
Status Destination::make_room(const proto::PrepareRequest& request) {
  using Mode = mover::IncomingVram::Mode;
  std::array<std::byte, 32> secret{};
  if (request.digest_key().size() != secret.size()) {
    return Error(Code::kProtocol, "the digest key is not 32 bytes long");
  }
  std::memcpy(secret.data(), request.digest_key().data(), secret.size());
  GCR_ASSIGN(scratch_, images::ScratchDirectory::create(context_.config.runtime_dir / "incoming" /
                                                        migration_.to_string()));
  GCR_ASSIGN(images_, open_store(scratch_->path(), secret));
  GCR_ASSIGN(prepared_restore_,
             criu::PreparedRestore::create({context_.config.criu_command}, scratch_->path(),
                                           context_.config.reaper, used_pids_));
  vram_->begin(digest::DigestKey::expand(secret),
               request.no_prefill() ? Mode::kReload : Mode::kPrefill);
  return {};
}

/// Changes `plan` to TCP where RDMA cannot be set up after all.
Result<std::unique_ptr<IncomingData>> Destination::open_data(DataPlan& plan,
                                                             const std::string& token) {
  const IncomingData::Options options{
      .tls = context_.data_ssl(),
      .token = token,
      .on_landed = [this](transport::RegionId region, std::uint64_t offset,
                          std::uint64_t length) { return landed(region, offset, length); },
      .hosts = context_.config.data_addresses,
      .local_host = context_.channel.local_host(),
      .peer_timeout = silence()};
  auto data = IncomingData::open(plan, options);
  if (data || plan.transport != proto::TRANSPORT_RDMA) return data;
  GCR_ASSIGN(plan, plan_without_rdma(wish_, source_offer_, offer_, data.error().message()));
  return IncomingData::open(plan, options);
}

awaitable<Result<proto::Envelope>> Destination::prepare(const proto::PrepareRequest& request) {
  GCR_CO_TRY(expect(State::kPreflight, "PrepareRequest"));
  wish_ = {request.transport(), request.plaintext(), request.lanes()};
  source_offer_ = request.offer();
  offer_ = data_offer(context_.config.unencrypted_data);
  auto plan = plan_data(wish_, source_offer_, offer_);
  GCR_CO_TRY(plan);
  const std::string token = to_bytes(Uuid::random()) + to_bytes(Uuid::random());
  auto opened = co_await offload(context_.blocking, [&]() -> Result<std::unique_ptr<IncomingData>> {
    GCR_TRY(make_room(request));
    GCR_ASSIGN(const auto buffers, wanted(request.buffers()));
    GCR_TRY(vram_->prepare(buffers));
    GCR_ASSIGN(auto data, open_data(*plan, token));
    GCR_TRY(data->add_region(kImageRegion, images_->ring()));
    GCR_TRY(open_regions(buffers, *data));
    return data;
  });
  GCR_CO_TRY(opened);
  data_ = std::move(*opened);
  proto::Envelope envelope;
  proto::PrepareReply& reply = *envelope.mutable_prepare_reply();
  for (const auto& [buffer, region] : region_of_buffer_) {
    proto::BufferRegion& out = *reply.add_regions();
    out.set_buffer_id(buffer);
    out.set_region(region);
  }
  reply.set_lanes(plan->lanes);
  reply.set_data_token(token);
  reply.set_image_region(kImageRegion);
  reply.set_image_region_bytes(images_->ring().size());
  reply.set_transport(plan->transport);
  reply.set_transport_reason(plan->reason);
  reply.set_encrypted(plan->encrypted);
  for (const auto& address : data_->addresses()) *reply.add_data_addresses() = address;
  GCR_CO_TRY(fault::point("destination.prepared"));
  state_ = State::kPrepared;
  co_return envelope;
}

awaitable<Result<proto::Envelope>> Destination::fall_back(const proto::FallBackRequest& request) {
  GCR_CO_TRY(expect(State::kPrepared, "FallBackRequest"));
  spdlog::info("migration {}: no RDMA: {}", migration_.to_string(),
               control::printable(request.reason()));
  const auto plan = plan_without_rdma(wish_, source_offer_, offer_, request.reason());
  GCR_CO_TRY(plan);
  GCR_CO_TRY(data_->fall_back(*plan));
  proto::Envelope envelope;
  proto::FallBackReply& reply = *envelope.mutable_fall_back_reply();
  reply.set_encrypted(plan->encrypted);
  for (const auto& address : data_->addresses()) *reply.add_data_addresses() = address;
  co_return envelope;
}

awaitable<Result<proto::Envelope>> Destination::change_buffers(
    const proto::BuffersRequest& request) {
  GCR_CO_TRY(expect(State::kPrepared, "BuffersRequest"));
  proto::Envelope envelope;
  const Status changed = co_await offload(context_.blocking, [&]() -> Status {
    for (const std::uint64_t id : request.removed_ids()) {
      const auto found = region_of_buffer_.find(id);
      if (found == region_of_buffer_.end()) {
        return Error(Code::kProtocol, fmt::format("there is no buffer {} to remove", id));
      }
      GCR_TRY(data_->remove_region(found->second));
      {
        const std::lock_guard lock(regions_mutex_);
        buffer_of_region_.erase(found->second);
      }
      region_of_buffer_.erase(found);
      vram_->remove(id);
    }
    GCR_ASSIGN(const auto buffers, wanted(request.added()));
    GCR_TRY(vram_->prepare(buffers));
    GCR_TRY(open_regions(buffers, *data_));
    for (const mover::IncomingVram::Wanted& buffer : buffers) {
      proto::BufferRegion& out = *envelope.mutable_buffers_reply()->add_regions();
      out.set_buffer_id(buffer.id);
      out.set_region(region_of_buffer_.at(buffer.id));
    }
    return {};
  });
  GCR_CO_TRY(changed);
  envelope.mutable_buffers_reply();
  co_return envelope;
}

Status Destination::restore_process(const proto::RestoreRequest& request, Phases& phases) {
  std::vector<images::NamedFile> files;
  for (const proto::ImageFile& file : request.files()) {
    GCR_ASSIGN(const auto digest, images::ImageDigest::from_bytes(file.digest()));
    files.push_back({file.name(), file.id(), file.size_bytes(), digest});
  }
  GCR_TRY(phases.time("images", "complete images", [&] { return images_->complete(files); }));
  GCR_TRY(fault::point("destination.imaged"));
  GCR_ASSIGN(process_,
             RestoredProcess::create(driver_, *prepared_restore_, running_, gpu_map_, phases));
  return {};
}

awaitable<Result<proto::Envelope>> Destination::restore(const proto::RestoreRequest& request) {
  using asio::experimental::awaitable_operators::operator&&;
  GCR_CO_TRY(expect(State::kPrepared, "RestoreRequest"));
  GCR_CO_TRY(data_->health());
  Phases phases("destination", Phases::Clock::time_point{});
  std::map<mover::BufferId, std::vector<digest::Digest>> sent;
  for (const proto::BufferDigests& buffer : request.digests()) {
    auto& digests = sent[buffer.buffer_id()];
    digests.resize(buffer.digests().size() / sizeof(digest::Digest));
    std::memcpy(digests.data(), buffer.digests().data(), digests.size() * sizeof(digest::Digest));
  }
  // Nothing may write any more: not into the images that CRIU reads, nor into the landing region.
  data_.reset();
  const bool prefilled = vram_->mode() == mover::IncomingVram::Mode::kPrefill;
  auto verifying = offload(context_.blocking, [&]() -> Result<std::uint64_t> {
    GCR_ASSIGN(const std::uint64_t chunks,
               phases.time("vram", prefilled ? "verify VRAM" : "fill and verify VRAM",
                           [&] { return vram_->fill_and_verify(sent); }));
    GCR_TRY(fault::point("destination.verified"));
    return chunks;
  });
  auto restoring = offload(context_.blocking, [&] { return restore_process(request, phases); });
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
  co_return envelope;
}

/// The process stands still by itself before the journal promises it, and it is the journal's
/// before the source hears of it.
Status Destination::vote(Phases& phases) {
  GCR_ASSIGN(auto descriptors, vram_->descriptors());
  GCR_TRY(process_->attach(std::move(descriptors), phases));
  GCR_TRY(fault::point("destination.attached"));
  GCR_TRY(process_->stand_still(phases));
  GCR_TRY(fault::point("destination.stopped"));
  GCR_ASSIGN(identity_, process_->identity());
  journal::Record record;
  *record.mutable_restored() = identity_;
  GCR_TRY(phases.time("process", "write the vote", [&] {
    return log_->advance(commit::DestinationEvent::kRestored, std::move(record));
  }));
  process_->leave();
  state_ = State::kRestored;
  return fault::point("destination.restored");
}

awaitable<Result<proto::Envelope>> Destination::commit(const proto::CommitRequest& request) {
  GCR_CO_TRY(expect(State::kRestored, "CommitRequest"));
  if (request.migration_id() != to_bytes(migration_)) {
    co_return Error(Code::kProtocol, "CommitRequest names another migration");
  }
  const auto start = Phases::Clock::now();
  const pid_t pid = identity_.process().pid();
  const Status resumed = co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(fault::point("destination.told"));
    journal::Record record;
    record.mutable_committed();
    GCR_TRY(log_->advance(commit::DestinationEvent::kToldCommit, std::move(record)));
    GCR_TRY(fault::point("destination.committed"));
    return recovery::resume_restored(identity_.process(), identity_.init());
  });
  GCR_CO_TRY(resumed);
  proto::Envelope envelope;
  envelope.mutable_commit_reply()->set_pid(pid);
  envelope.mutable_commit_reply()->set_resume_ms(
      Phases::milliseconds(Phases::Clock::now() - start));
  GCR_CO_TRY(fault::point("destination.resumed"));
  state_ = State::kCommitted;
  const std::string text = fmt::format("process {} runs here", pid);
  context_.daemon.report_outcome(true, text);
  co_return envelope;
}

}  // namespace

awaitable<void> run_destination(WorkerContext& context, proto::PreflightRequest request) {
  Destination destination(context);
  co_await destination.run(std::move(request));
}

}  // namespace gcr::agent

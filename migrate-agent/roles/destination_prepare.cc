// The destination's steps before the process is restored: preflight, allocating memory, and
// receiving data.
#include <fmt/format.h>

#include "migrate-agent/data/offer.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/preflight/comparison.h"
#include "migrate-agent/process/surroundings.h"
#include "migrate-agent/roles/check.h"
#include "migrate-agent/roles/destination.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/settlement/records.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/base/users.h"

namespace gcr::agent {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr unsigned kImageSlots = 64;
/// Room for images beyond what the source expects, at first and for each extension.
constexpr std::uint64_t kImageStepBytes = 64 * kMiB;
/// Overhead of the tmpfs: CRIU's logs, and the rest of each file's last page.
constexpr std::uint64_t kImageOverheadBytes = 64 * kMiB;
constexpr std::uint64_t kMaxImageBytes = std::uint64_t{1} << 46;

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

/// What landing memory can be made of.
Result<std::uint64_t> landing_room() {
  GCR_ASSIGN(const std::uint64_t available, landing::available_memory_bytes());
  GCR_ASSIGN(const std::uint64_t huge, landing::free_hugepage_bytes());
  return available + huge;
}

/// A user who moves their own process without an operator must not become another user by it.
Status check_local_user(const proto::PreflightRequest& request) {
  if (!request.ordered_by().starts_with("uid ")) return {};
  for (const proto::ProcessFacts& process : request.members()) {
    const std::string here = user_name(process.uid());
    if (process.uid() == 0 || (!here.empty() && here == process.user())) continue;
    return Error(
        Code::kPermissionDenied,
        fmt::format(
            "local users move their processes to hosts where they are the same user: uid {} "
            "is \"{}\" at the source and \"{}\" here; an operator may move it",
            process.uid(), control::printable(process.user()).substr(0, kMaxNameBytes), here));
  }
  return {};
}

}  // namespace

using asio::awaitable;

/// Where to ask the source for the outcome: the address that it gave, or the one it connected from.
journal::Began Destination::description(const proto::PreflightRequest& request) const {
  journal::Began began;
  began.set_migration_id(to_bytes(migration_));
  began.set_role(journal::Began::DESTINATION);
  const std::string& said = request.source_agent();
  const std::string from = context_.channel.peer_address();
  began.set_peer(said.starts_with(':') ? from.substr(0, from.rfind(':')) + said
                                       : control::printable(said));
  began.set_peer_name(context_.channel.peer().common_name);
  began.set_command(short_command(request.members(0).command()));
  began.set_ordered_by(control::printable(request.ordered_by()).substr(0, kMaxNameBytes));
  began.set_uid(request.members(0).uid());
  return began;
}

awaitable<Result<proto::Envelope>> Destination::preflight(const proto::PreflightRequest& request) {
  GCR_CO_TRY(expect(State::kPreflight, "PreflightRequest"));
  if (request.buffers_size() > static_cast<int>(kMaxBuffers)) {
    co_return Error(Code::kProtocol, fmt::format("{} buffers are more than {}",
                                                 request.buffers_size(), kMaxBuffers));
  }
  GCR_CO_TRY(check_members(request.members_size()));
  GCR_CO_TRY(check_local_user(request));
  migration_ = to_uuid(request.migration_id());
  log_migration(migration_);
  spdlog::info("receives \"{}\" from {}", short_command(request.members(0).command()),
               context_.channel.peer_address());
  began_ = description(request);
  is_migration_ = !request.only();
  GCR_CO_TRY(control::Endpoint::parse(began_.peer()));
  for (const proto::ProcessFacts& member : request.members()) {
    running_.insert({member.door_tid(), member.cuda_restore_tid()});
    used_pids_.insert(member.used_pids().begin(), member.used_pids().end());
    image_bytes_ += std::min(member.image_bytes(), kMaxImageBytes);
  }
  proto::Envelope envelope;
  const Status room =
      co_await context_.daemon.ask_room(journal::Began::DESTINATION, request.ordered_by());
  const Status looked = co_await offload(context_.blocking, [&]() -> Status {
    *envelope.mutable_preflight_reply() = look(request, room);
    return {};
  });
  GCR_CO_TRY(looked);
  const auto& findings = envelope.preflight_reply().findings();
  const std::string reason = preflight::reason_of({findings.begin(), findings.end()});
  if (request.only() || !reason.empty()) {
    state_ = State::kEnded;
    cause_ = Error(Code::kRefused, reason);
  }
  GCR_CO_TRY(fault::point("destination.preflighted"));
  co_return envelope;
}

/// Begins the migration on this host: registers it for data connections, and creates the journal.
awaitable<Status> Destination::begin() {
  GCR_CO_TRY(co_await context_.daemon.register_migration(migration_, began_.ordered_by()));
  const Status created = co_await offload(context_.blocking, [&]() -> Status {
    GCR_ASSIGN(log_, commit::DestinationLog::create(context_.config.state_dir, migration_, began_));
    return {};
  });
  GCR_CO_TRY(created);
  GCR_CO_TRY(context_.line.open(migration_, journal::Began::DESTINATION));
  co_return fault::point("destination.began");
}

/// Everything about this host that matters to the process.
proto::PreflightReply Destination::look(const proto::PreflightRequest& request,
                                        const Status& room) {
  preflight::Findings findings(preflight::Side::kDestination);
  Survey here = survey(context_.config, findings);
  compare_hosts(request, here.facts, context_.config, findings);
  for (const proto::ProcessFacts& member : request.members()) {
    compare_process(member, here.facts, findings);
  }
  note_room(room, findings);
  if (here.driver) {
    driver_ = here.driver;
    vram_.emplace(driver_, landing_policy(context_.config.hugepages));
    gpu_map_ = map_gpus(request, here.facts, *vram_, findings);
  }
  limits_ = limits_here(request.members(0).limits());
  proto::PreflightReply reply;
  *reply.mutable_host() = std::move(here.facts);
  for (proto::Finding& finding : findings.release()) *reply.add_findings() = std::move(finding);
  for (const device::GpuPair& pair : gpu_map_) {
    proto::GpuPair& out = *reply.add_gpu_map();
    out.set_source_uuid(to_bytes(pair.from));
    out.set_destination_uuid(to_bytes(pair.to));
  }
  return reply;
}

/// With the GPUs that replace the source's.
proto::GroupLimits Destination::limits_here(proto::GroupLimits limits) const {
  if (!limits.has_devices()) return limits;
  for (proto::Device& device : *limits.mutable_devices()->mutable_allowed()) {
    const auto pair =
        std::ranges::find(gpu_map_, to_uuid(device.gpu_uuid()), &device::GpuPair::from);
    if (pair != gpu_map_.end()) device.set_gpu_uuid(to_bytes(pair->to));
  }
  return limits;
}

Status Destination::open_regions(const Wanted& wanted, IncomingData& data) {
  for (const mover::IncomingVram::Wanted& buffer : wanted) {
    const transport::RegionId region = next_region_++;
    region_of_buffer_[buffer.id] = region;
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
  job::AllocationId buffer;
  {
    const std::lock_guard lock(regions_mutex_);
    const auto found = buffer_of_region_.find(region);
    if (found == buffer_of_region_.end()) return {};  // removed while its last bytes landed
    buffer = found->second;
  }
  return vram_->landed(buffer, offset, length_bytes);
}

landing::Memory Destination::landing_memory(const Wanted& wanted) const {
  std::uint64_t bytes = 0;
  for (const auto& buffer : wanted) bytes += std::min(buffer.size_bytes, kMaxImageBytes);
  if (context_.config.hugepages == HugepagePolicy::kNever) return {.ordinary_bytes = bytes};
  return {.huge_bytes = bytes};
}

/// Allocates what was reserved for these.
Status Destination::place(const Wanted& wanted) {
  GCR_TRY(vram_->prepare(wanted));
  return memory_->taken(landing_memory(wanted));
}

Result<std::uint64_t> Destination::more_image_room(std::uint64_t bytes) {
  const std::uint64_t step = std::max(bytes, kImageStepBytes);
  GCR_TRY(memory_->add({.ordinary_bytes = step}));
  image_room_ += step;
  GCR_TRY(image_memory_->resize(image_room_ + kImageOverheadBytes));
  return image_room_;
}

/// Before anything is allocated, so that two migrations that do not fit together do not both run
/// out.
Status Destination::reserve(const Wanted& wanted) {
  GCR_ASSIGN(memory_, landing::MemoryReservation::create(
                          landing::reservations_in(context_.config.runtime_dir)));
  image_room_ = image_bytes_ + kImageStepBytes;
  landing::Memory needed = landing_memory(wanted);
  // The process's own memory is there twice while it is restored: as images and as pages.
  needed.ordinary_bytes += image_room_ + image_bytes_;
  return memory_->add(needed);
}

/// Creates what data connections need.
Status Destination::make_room(const proto::PrepareRequest& request) {
  using Mode = mover::IncomingVram::Mode;
  GCR_ASSIGN(const auto secret, check_digest_key(request.digest_key()));
  GCR_ASSIGN(image_memory_, images::ImageMemory::create(image_room_ + kImageOverheadBytes));
  const std::filesystem::path directory = image_memory_->path();
  GCR_ASSIGN(images_, images::ImageStore::create(
                          directory, kImageSlots, image_room_, secret,
                          [this](std::uint64_t bytes) { return more_image_room(bytes); }));
  group_ = settlement::group_of(log_->journal());
  GCR_TRY(group_.create(limits_));
  GCR_ASSIGN(std::vector<UniqueFd> entries, group_.entries());
  GCR_ASSIGN(prepared_restore_, criu::PreparedRestore::create(context_.config.criu, directory,
                                                              used_pids_, std::move(entries)));
  vram_->begin(digest::DigestKey::expand(secret),
               request.no_prefill() ? Mode::kReload : Mode::kPrefill);
  return {};
}

/// Changes `plan` to TCP if RDMA cannot be set up.
Result<std::unique_ptr<IncomingData>> Destination::open_data(DataPlan& plan,
                                                             const std::string& token) {
  const IncomingData::Options options{
      .tls = context_.data_ssl(),
      .token = token,
      .migration = migration_,
      .on_landed = [this](transport::RegionId region, std::uint64_t offset,
                          std::uint64_t length) { return landed(region, offset, length); },
      .hosts = context_.config.data_addresses,
      .local_host = context_.channel.local_host(),
      .peer_timeout = context_.config.peer_silence()};
  auto data = IncomingData::open(plan, options);
  if (data || plan.transport != proto::TRANSPORT_RDMA) return data;
  GCR_ASSIGN(plan, plan_without_rdma(wish_, source_offer_, offer_, data.error().message()));
  return IncomingData::open(plan, options);
}

awaitable<Result<proto::Envelope>> Destination::prepare(const proto::PrepareRequest& request) {
  GCR_CO_TRY(expect(State::kPreflight, "PrepareRequest"));
  GCR_CO_TRY(co_await begin());
  wish_ = {request.transport(), request.plaintext(), request.lanes()};
  source_offer_ = request.offer();
  offer_ = data_offer(context_.config.unencrypted_data);
  auto plan = plan_data(wish_, source_offer_, offer_);
  GCR_CO_TRY(plan);
  const std::string token = to_bytes(Uuid::random()) + to_bytes(Uuid::random());
  auto opened = co_await offload(context_.blocking, [&]() -> Result<std::unique_ptr<IncomingData>> {
    GCR_ASSIGN(const std::uint64_t room, landing_room());
    GCR_ASSIGN(const auto buffers, add_buffers(request.buffers(), gpu_map_, job_, room));
    GCR_TRY(reserve(buffers));
    GCR_TRY(make_room(request));
    GCR_TRY(place(buffers));
    GCR_ASSIGN(auto data, open_data(*plan, token));
    GCR_TRY(data->add_region(kImageRegion, images_->ring()));
    GCR_TRY(open_regions(buffers, *data));
    return data;
  });
  GCR_CO_TRY(opened);
  data_ = std::move(*opened);
  proto::Envelope envelope;
  proto::PrepareReply& reply = *envelope.mutable_prepare_reply();
  for (const auto& [id, region] : region_of_buffer_) {
    proto::BufferRegion& out = *reply.add_regions();
    out.set_buffer_id(id.value);
    out.set_region(region);
  }
  reply.set_lanes(plan->lanes);
  reply.set_data_token(token);
  reply.set_prefill(vram_->mode() == mover::IncomingVram::Mode::kPrefill);
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
  spdlog::info("no RDMA: {}", control::printable(request.reason()));
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
    GCR_TRY(remove_buffers(request.removed_ids(), job_));
    GCR_TRY(remap_buffers(request.remapped(), job_));
    for (const std::uint64_t removed : request.removed_ids()) {
      const job::AllocationId id{removed};
      const transport::RegionId region = region_of_buffer_.at(id);
      GCR_TRY(data_->remove_region(region));
      {
        const std::lock_guard lock(regions_mutex_);
        buffer_of_region_.erase(region);
      }
      region_of_buffer_.erase(id);
      vram_->remove(id);
    }
    GCR_ASSIGN(const std::uint64_t room, landing_room());
    GCR_ASSIGN(const auto buffers, add_buffers(request.added(), gpu_map_, job_, room));
    GCR_TRY(memory_->add(landing_memory(buffers)));
    GCR_TRY(place(buffers));
    GCR_TRY(open_regions(buffers, *data_));
    for (const mover::IncomingVram::Wanted& buffer : buffers) {
      proto::BufferRegion& out = *envelope.mutable_buffers_reply()->add_regions();
      out.set_buffer_id(buffer.id.value);
      out.set_region(region_of_buffer_.at(buffer.id));
    }
    return {};
  });
  GCR_CO_TRY(changed);
  envelope.mutable_buffers_reply();
  co_return envelope;
}

}  // namespace gcr::agent

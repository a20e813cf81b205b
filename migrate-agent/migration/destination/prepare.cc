// The destination's steps before the restore: preflight, allocating memory, receiving data.
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>

#include "container/messages.h"
#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/cgroups/limits.h"
#include "migrate-agent/linux/network/announce.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "migrate-agent/migration/destination/course.h"
#include "migrate-agent/migration/finish/container.h"
#include "migrate-agent/migration/finish/network.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/process/inspect/surroundings.h"
#include "migrate-agent/process/slurm/folder.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "src/base/log.h"
#include "src/base/users.h"

namespace gcr::migration::destination {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
/// The largest landing window for a source on this host: VRAM arrives no faster than it is
/// uploaded.
constexpr std::uint64_t kWindowWithinHostBytes = 512 * kMiB;
constexpr std::uint64_t kMaxImageBytes = std::uint64_t{1} << 46;
constexpr std::chrono::seconds kAnswerPatience{1};

/// An upper bound of the bytes that buffers can use here: host memory and all VRAM.
Result<std::uint64_t> room_for_buffers(const device::Driver& driver) {
  GCR_ASSIGN(const std::uint64_t available, hostmem::available_memory_bytes());
  GCR_ASSIGN(const std::uint64_t huge, hostmem::free_hugepage_bytes());
  std::uint64_t room = available + huge;
  for (const device::GpuInfo& gpu : driver.gpus()) room += gpu.total_bytes;
  return room;
}

/// How much memory of the process may be in place before the restore. Memory that was freed since
/// the last round is still in place, and must not exceed the limit of the group.
std::uint64_t most_in_place(const proto::GroupLimits& limits) {
  return limits.has_memory_bytes() ? limits.memory_bytes() / 4 * 3 : UINT64_MAX;
}

/// Checks that a user who moves their own process does not become another user by it.
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

/// In the network of the container that receives the job: whether the job alone answers for the
/// addresses of an interface. Those that are link-local belong to its hardware address.
Status check_owners(const proto::NetworkInterface& interface, findings::Findings& findings) {
  for (const proto::NetworkAddress& each : interface.addresses()) {
    const std::string address = network::plain(each);
    if (network::is_link_local(address)) continue;
    GCR_ASSIGN(auto owners, network::who_has(interface.name(), address, kAnswerPatience));
    if (owners.empty()) {
      findings.add(findings::kAddressUnheard,
                   fmt::format("no host answers for {} on {} of the container that receives it",
                               address, interface.name()));
    }
    owners.erase(interface.hardware_address());
    if (owners.empty()) continue;
    findings.add(findings::kAddressTaken, fmt::format("another host answers for {} too", address));
  }
  return {};
}

/// Whether the operator only asks, about a container that does not exist yet.
bool will_be_made(const proto::PreflightRequest& request) {
  return request.only() && request.has_container() && request.container().init() == 0;
}

}  // namespace

/// The beginning of the journal. Its peer, which is asked for the outcome, is the address in the
/// request, or the one that the source connected from.
journal::Began Course::description(const proto::PreflightRequest& request) const {
  journal::Began began;
  began.set_migration_id(to_bytes(migration_));
  began.set_role(journal::Began::DESTINATION);
  const std::string& said = request.source_agent();
  const std::string from = context_.channel.peer_address();
  began.set_peer(said.starts_with(':') ? from.substr(0, from.rfind(':')) + said
                                       : control::printable(said));
  began.set_peer_name(context_.channel.peer().common_name);
  began.set_command(journal::short_command(request.members(0).command()));
  began.set_ordered_by(control::printable(request.ordered_by()).substr(0, kMaxNameBytes));
  began.set_uid(request.members(0).uid());
  if (request.suspended()) began.set_suspends(to_bytes(Uuid::random()));
  began.set_slurm_job(request.slurm_job());
  return began;
}

/// Finds the container that the operator has named, before anything is compared inside it. kRefused
/// if it cannot receive a job. None yet if the question is about one that will be made.
Status Course::find_container(const proto::PreflightRequest& request) {
  if (!request.has_container()) return {};
  if (request.ordered_by().starts_with("uid ")) {
    return Error(Code::kPermissionDenied, "only operators move jobs into containers");
  }
  if (will_be_made(request)) return {};
  const proto::ReceivingContainer& named = request.container();
  if (!container::is_key(named.key())) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("the key of a container has {} hexadecimal digits", container::kKeyDigits));
  }
  GCR_ASSIGN(procfs::Process init, procfs::Process::open(named.init()));
  procfs::Container found(std::move(init));
  GCR_TRY(found.check_waits(context_.config.criu.reaper.parent_path() / "gcr-init", named.key()));
  GCR_ASSIGN(const bool received, finish::has_received(context_.config.state_dir, named.key()));
  if (received) {
    return Error(Code::kRefused, fmt::format("a job has come into the container of process {} "
                                             "already, and it receives once",
                                             named.init()));
  }
  GCR_ASSIGN(*plan_.began.mutable_container(), finish::describe(found));
  plan_.began.mutable_container()->set_key(named.key());
  GCR_ASSIGN(plan_.limits, cgroups::limits_of(cgroups::hierarchies(), found.init().pid()));
  plan_.limits.clear_devices();
  plan_.from_container = request.from_container();
  container_ = std::move(found);
  return {};
}

/// Whether the job may be in this container. kRefused, with the reason.
Status Course::check_container(const proto::PreflightRequest& request) const {
  if (request.has_from_container() && !request.has_container()) {
    return Error(Code::kRefused,
                 "it is from a container, and no container was named to receive it");
  }
  if (!request.has_from_container() && request.has_container()) {
    return Error(Code::kRefused,
                 "a container was named to receive it, but it is from none that gcr-runtime has "
                 "started");
  }
  if (!container_) return {};
  const pid_t init = container_->init().pid();
  GCR_ASSIGN(const proto::Credentials rights, preflight::rights_of_container(init));
  const std::set<pid_t> taken = container_->used_pids();
  for (const proto::ProcessFacts& member : request.members()) {
    GCR_TRY(preflight::check_confinement(member.credentials(), rights));
    GCR_TRY(preflight::check_labels(member, init));
    for (const pid_t pid : member.used_pids()) {
      // Sessions and process groups may be named after the init itself.
      if (pid == 1 || !taken.contains(pid)) continue;
      return Error(Code::kRefused,
                   fmt::format("the job needs the PID {}, which another process of the receiving "
                               "container has",
                               pid));
    }
  }
  return {};
}

/// Runs `work` where the names and addresses of the job lead: here, or in its container.
Status Course::in_place(const std::function<Status()>& work) const {
  return container_ ? container_->inside(work) : work();
}

Result<process::Addresses> Course::addresses() const {
  if (!container_) return process::Addresses(context_.channel.local_host());
  std::optional<process::Addresses> found;
  GCR_TRY(container_->inside([&]() -> Status {
    found.emplace(process::first_address());
    return {};
  }));
  return std::move(*found);
}

/// Compares what the job has by name, and its addresses.
Status Course::compare_place(const proto::PreflightRequest& request, findings::Findings& findings) {
  if (will_be_made(request)) return {};
  GCR_ASSIGN(const process::Addresses here, addresses());
  return in_place([&]() -> Status {
    GCR_ASSIGN(const auto coming, preflight::compare_memory_files(request, findings));
    for (const proto::ProcessFacts& member : request.members()) {
      preflight::compare_place(member, here, coming, findings);
    }
    return {};
  });
}

/// What the container's network is to be, if addresses move with the job, and whether it can.
Status Course::check_network(const proto::PreflightRequest& request, findings::Findings& findings) {
  if (!request.has_network() || !container_) return {};
  Result<proto::Network> planned = Error(Code::kInternal, "");
  GCR_TRY(container_->inside([&]() -> Status {
    GCR_ASSIGN(const proto::Network here, network::read_interfaces());
    planned = network::merge(request.network(), here);
    if (!planned) return {};
    for (const proto::NetworkInterface& interface : planned->interfaces()) {
      GCR_TRY(check_owners(interface, findings));
    }
    return {};
  }));
  if (planned) {
    for (int i = 0; i < planned->interfaces_size(); ++i) {
      plan_.interfaces[request.network().interfaces(i).name()] = planned->interfaces(i).name();
    }
    *plan_.began.mutable_network() = std::move(*planned);
  } else {
    findings.add(findings::kAddressStays,
                 fmt::format("in the container that receives it: {}",
                             control::printable(planned.error().message())));
  }
  return {};
}

Status Course::preflight(const proto::PreflightRequest& request, proto::PreflightReply& reply) {
  GCR_TRY(expect(std::nullopt, "PreflightRequest"));
  if (request.buffers_size() > static_cast<int>(kMaxBuffers)) {
    return Error(Code::kProtocol, fmt::format("the source has {} buffers, at most {} are supported",
                                              request.buffers_size(), kMaxBuffers));
  }
  GCR_TRY(check_members(request.members_size()));
  GCR_TRY(check_local_user(request));
  migration_ = to_uuid(request.migration_id());
  log_migration(migration_);
  spdlog::info("receiving \"{}\" from {}", journal::short_command(request.members(0).command()),
               context_.channel.peer_address());
  plan_.began = description(request);
  plan_.is_migration = !request.only();
  GCR_TRY(find_container(request));
  GCR_TRY(control::Endpoint::parse(plan_.began.peer()));
  job_ = gpu::Job(static_cast<std::uint32_t>(request.members_size()));
  if (request.suspended()) {
    plan_.kept.emplace();
    *plan_.kept->mutable_limits() = request.members(0).limits();
    *plan_.kept->mutable_gpus() = request.host().gpus();
  }
  std::uint32_t place = 0;
  for (const proto::ProcessFacts& member : request.members()) {
    for (const pid_t thread : {member.door_tid(), member.cuda_restore_tid()}) {
      if (thread != 0) plan_.running.insert(thread);
    }
    if (member.driver_alone() && member.cuda_restore_tid() == 0) {
      return Error(Code::kProtocol,
                   fmt::format("process {} uses CUDA, but the source named no thread to restore it",
                               member.pid_in_namespace()));
    }
    if (member.door_tid() != 0 || member.driver_alone()) {
      plan_.gpu_users[{place}] = {member.pid_in_namespace(), member.driver_alone()};
      if (plan_.kept) {
        gpu::KeptMember& kept = *plan_.kept->add_members();
        kept.set_door_tid(member.door_tid());
        kept.set_cuda_restore_tid(member.cuda_restore_tid());
      }
    }
    ++place;
    plan_.used_pids.insert(member.used_pids().begin(), member.used_pids().end());
    plan_.image_bytes += std::min(member.image_bytes(), kMaxImageBytes);
  }
  const Status room = worker::on_io(
      context_.io,
      context_.daemon.check_admission(journal::Began::DESTINATION, request.ordered_by()));
  GCR_TRY(
      phases_.time("course", "compare hosts", [&] { return compare_hosts(request, room, reply); }));
  const std::string reason =
      findings::reason_of({reply.findings().begin(), reply.findings().end()});
  if (request.only() || !reason.empty()) {
    ended_ = true;
    cause_ = Error(Code::kRefused, reason);
  }
  return fault::point("destination.preflighted");
}

/// Compares this host with what the process needs, and adds the findings to the reply.
Status Course::compare_hosts(const proto::PreflightRequest& request, const Status& room,
                             proto::PreflightReply& reply) {
  findings::Findings findings(findings::Side::kDestination);
  preflight::Survey here = preflight::survey(context_.config, findings);
  preflight::compare_hosts(request, here.facts, context_.config, findings);
  plan_.criu_plugin = preflight::find_plugin(request, here.facts, context_.config, findings);
  const Status fits = check_container(request);
  if (!fits) findings.add(findings::kContainer, fits.error().message());
  GCR_TRY(compare_place(request, findings));
  GCR_TRY(check_network(request, findings));
  const bool has_own_groups = request.slurm_job() == 0 && !request.has_container();
  for (const proto::ProcessFacts& member : request.members()) {
    preflight::compare_process(member, here.facts, request.has_container(), findings);
    if (has_own_groups) preflight::compare_groups(member, findings);
  }
  preflight::add_admission_finding(room, findings);
  GCR_TRY(mark_hidden_gpus(here.facts));
  if (here.driver) {
    plan_.driver = here.driver;
    vram_.emplace(here.driver, context_.config.hugepages);
    plan_.gpu_map = preflight::map_gpus(request, here.facts, context_.config, *vram_, findings);
    const auto boot_id = journal::boot_id();
    preflight::check_other_gpu_users(request, boot_id && *boot_id == request.boot_id(),
                                     plan_.gpu_map, findings);
  }
  plan_.criu_plugin_map = preflight::plugin_map(request.host(), here.facts, plan_.gpu_map);
  // A Slurm job is limited by the job's own groups, a container by its own.
  if (has_own_groups) plan_.limits = limits_here(request.members(0).limits());
  if (plan_.criu_plugin != nullptr) hide_other_gpus(here.facts);
  *reply.mutable_host() = std::move(here.facts);
  findings.accept(request.accepted());
  for (proto::Finding& finding : findings.release()) *reply.add_findings() = std::move(finding);
  for (const device::GpuPair& pair : plan_.gpu_map) {
    proto::GpuPair& out = *reply.add_gpu_map();
    out.set_source_uuid(to_bytes(pair.from));
    out.set_destination_uuid(to_bytes(pair.to));
  }
  return {};
}

/// Marks the GPUs of this host that the container cannot open.
Status Course::mark_hidden_gpus(proto::HostFacts& here) const {
  if (!container_) return {};
  GCR_ASSIGN(const std::set<Uuid> hidden,
             cgroups::hidden_gpus(cgroups::hierarchies(), container_->init().pid()));
  for (proto::Gpu& gpu : *here.mutable_gpus()) gpu.set_hidden(hidden.contains(to_uuid(gpu.uuid())));
  return {};
}

/// Hides unplanned AMD GPUs: CRIU's plugin uses all that it sees, and needs the source's number.
void Course::hide_other_gpus(const proto::HostFacts& here) {
  if (plan_.limits.has_devices()) return;  // which already allow only the planned ones
  std::set<Uuid> others;
  for (const proto::Gpu& gpu : here.gpus()) {
    const Uuid uuid = to_uuid(gpu.uuid());
    const bool is_planned =
        std::ranges::find(plan_.gpu_map, uuid, &device::GpuPair::to) != plan_.gpu_map.end();
    if (gpu.kfd_id() != 0 && !is_planned) others.insert(uuid);
  }
  auto limits = cgroups::devices_without(others);
  if (limits) *plan_.limits.mutable_devices() = std::move(*limits);
}

/// The limits with this host's GPUs in place of the source's.
proto::GroupLimits Course::limits_here(proto::GroupLimits limits) const {
  if (!limits.has_devices()) return limits;
  for (proto::Device& device : *limits.mutable_devices()->mutable_allowed()) {
    const auto pair =
        std::ranges::find(plan_.gpu_map, to_uuid(device.gpu_uuid()), &device::GpuPair::from);
    if (pair != plan_.gpu_map.end()) device.set_gpu_uuid(to_bytes(pair->to));
  }
  return limits;
}

Status Course::open_region(gpu::AllocationId id, transfer::IncomingData& data) {
  const auto region = vram_->region(id);
  if (!region.landing.empty()) return data.receiver().add_region(region.id, region.landing);
  if (!std::exchange(window_is_open_, true)) GCR_TRY(data.receiver().open_window(vram_->window()));
  return data.receiver().add_windowed_region(region.id, region.size_bytes);
}

Status Course::open_all_regions(transfer::IncomingData& data) {
  window_is_open_ = false;
  GCR_TRY(data.receiver().add_region(kImageRegion, room_->images().ring()));
  for (const auto& [id, allocation] : job_.allocations()) GCR_TRY(open_region(id, data));
  return {};
}

Status Course::landed(transport::RegionId region, std::uint64_t offset,
                      std::uint64_t length_bytes) {
  if (region == kImageRegion) return room_->images().landed(offset, length_bytes);
  return vram_->landed(region, offset, length_bytes);
}

/// Begins the migration on this host: registers it for data connections, and creates the journal.
Status Course::begin() {
  GCR_TRY(worker::on_io(context_.io,
                        context_.daemon.register_migration(migration_, plan_.began.ordered_by())));
  GCR_ASSIGN(log_,
             commit::DestinationLog::create(context_.config.state_dir, migration_, plan_.began));
  GCR_TRY(worker::on_io(
      context_.io, [&] { return context_.line.open(migration_, journal::Began::DESTINATION); }));
  GCR_TRY(finish::receive_network(plan_.began));
  return fault::point("destination.began");
}

/// The groups that the job is restored into.
Result<std::vector<UniqueFd>> Course::group_entries() const {
  if (!container_) return group_.entries();
  return cgroups::entries_of(cgroups::hierarchies(), container_->init().pid(), group_);
}

/// The container, with the standard streams that the job gets.
Result<criu::RestoreContainer> Course::restore_container() const {
  constexpr std::uint32_t kStreams = 3;
  criu::RestoreContainer container{.init = container_->init()};
  std::set<std::uint64_t> pipes;
  for (const proto::ContainerStream& stream : plan_.from_container.streams()) {
    if (stream.number() >= kStreams) {
      return Error(Code::kProtocol, fmt::format("{} is no standard stream", stream.number()));
    }
    if (!pipes.insert(stream.pipe()).second) continue;
    UniqueFd own(static_cast<int>(
        ::syscall(SYS_pidfd_getfd, container.init.pidfd(), static_cast<int>(stream.number()), 0)));
    if (!own) {
      return Error::from_errno(errno, fmt::format("cannot get the standard stream {} of the "
                                                  "container",
                                                  stream.number()));
    }
    container.streams.push_back({std::move(own), stream.pipe()});
  }
  return container;
}

/// Starts a CRIU that waits; memory that arrives is written into it.
Status Course::start_criu() {
  GCR_ASSIGN(std::vector<UniqueFd> entries, group_entries());
  std::optional<criu::RestoreContainer> container;
  if (container_) {
    GCR_ASSIGN(container, restore_container());
  }
  UniqueFd status;
  if (const slurm::JobId owner = plan_.began.slurm_job(); owner != 0) {
    GCR_ASSIGN(status, slurm::open_folder(context_.config.slurm, owner));
  }
  GCR_ASSIGN(prepared_restore_, criu::PreparedRestore::create(
                                    context_.config.criu, room_->image_directory(), plan_.used_pids,
                                    {.groups = std::move(entries),
                                     .most_in_place = most_in_place(plan_.limits),
                                     .plugin = plan_.criu_plugin,
                                     .planned = plan_.criu_plugin_map,
                                     .status_directory = std::move(status),
                                     .go_on = [this] { return context_.cancellation.check(); },
                                     .container = std::move(container)}));
  room_->images().place_memory([&restore = *prepared_restore_](const images::BlockHeader& header,
                                                               std::span<const std::byte> pages) {
    return restore.place({header.memory, header.shared, header.offset, header.present}, pages);
  });
  return {};
}

/// Reserves and allocates memory for the data. CRIU starts while VRAM is allocated.
Status Course::make_room(const proto::PrepareRequest& request, const Wanted& wanted,
                         unsigned lanes) {
  using Mode = mover::IncomingVram::Mode;
  GCR_ASSIGN(const auto secret, check_digest_key(request.digest_key()));
  GCR_ASSIGN(room_, Room::reserve(context_.config, plan_.image_bytes));
  GCR_TRY(room_->open_images(secret));
  if (container_) {
    GCR_ASSIGN(group_, finish::group_in_container(log_->journal()));
    GCR_TRY(finish::check_freezer(group_));
  } else {
    group_ = finish::group_of(log_->journal());
  }
  if (plan_.kept) {
    keep_description(request);
    GCR_TRY(finish::check_freezer(group_));
  }
  GCR_TRY(container_ ? group_.create() : group_.create(plan_.limits));
  const std::uint64_t most = context_.config.landing_window_bytes;
  const std::uint64_t window =
      context_.channel.stays_on_host() ? std::min(most, kWindowWithinHostBytes) : most;
  const Mode filled = request.no_prefill() ? Mode::kReload : Mode::kPrefill;
  vram_->begin(digest::DigestKey::expand(secret), plan_.kept ? Mode::kKeep : filled,
               {window, lanes});
  auto criu = std::async(std::launch::async, [this] {
    return worker::guarded(
        [this] { return phases_.time("process", "start CRIU", [this] { return start_criu(); }); });
  });
  const Status placed = worker::guarded([&] {
    return phases_.time("vram", "make room for VRAM", [&] { return allocate_buffers(wanted); });
  });
  GCR_TRY(criu.get());
  return placed;
}

/// Completes the description for the keeper of the VRAM.
void Course::keep_description(const proto::PrepareRequest& request) {
  plan_.kept->set_digest_key(request.digest_key());
  for (const proto::Buffer& buffer : request.buffers()) {
    *plan_.kept->add_buffers()->mutable_buffer() = buffer;
  }
}

Status Course::allocate_buffers(const Wanted& wanted) {
  hostmem::Memory reserved;
  GCR_TRY(vram_->prepare(wanted, [&](std::uint64_t bytes) {
    reserved = hostmem::needed_for_landing(context_.config.hugepages, bytes);
    return room_->memory().add(reserved);
  }));
  return room_->memory().taken(reserved);
}

/// Changes `plan` to TCP if RDMA cannot be set up.
Result<std::unique_ptr<transfer::IncomingData>> Course::open_data(transfer::DataPlan& plan,
                                                                  const std::string& token) {
  const transfer::IncomingData::Options options{
      .tls = context_.data_ssl(),
      .token = token,
      .migration = migration_,
      .on_landed = [this](transport::RegionId region, std::uint64_t offset,
                          std::uint64_t length) { return landed(region, offset, length); },
      .hosts = context_.config.data_addresses,
      .local_host = context_.channel.local_host(),
      .peer_timeout = context_.config.peer_silence()};
  auto data = transfer::IncomingData::open(plan, options);
  if (data || plan.transport != proto::TRANSPORT_RDMA) return data;
  GCR_ASSIGN(
      plan, plan_without_rdma(link_.wish, link_.source_offer, link_.offer, data.error().message()));
  return transfer::IncomingData::open(plan, options);
}

Status Course::prepare(const proto::PrepareRequest& request, proto::PrepareReply& reply) {
  GCR_TRY(expect(std::nullopt, "PrepareRequest"));
  GCR_TRY(begin());
  link_ = {.wish = {request.transport(), request.plaintext(), request.lanes()},
           .source_offer = request.offer(),
           .offer = transfer::data_offer(context_.config.unencrypted_data)};
  GCR_ASSIGN(auto plan, plan_data(link_.wish, link_.source_offer, link_.offer));
  const std::string token = to_bytes(Uuid::random()) + to_bytes(Uuid::random());
  GCR_ASSIGN(const std::uint64_t room, room_for_buffers(*plan_.driver));
  GCR_ASSIGN(const auto buffers, add_buffers(request.buffers(), plan_.gpu_map, job_, room));
  GCR_TRY(make_room(request, buffers, plan.lanes));
  GCR_ASSIGN(auto data, open_data(plan, token));
  GCR_TRY(open_all_regions(*data));
  for (const auto& [id, allocation] : job_.allocations()) {
    proto::BufferRegion& out = *reply.add_regions();
    out.set_buffer_id(id.value);
    out.set_region(vram_->region(id).id);
  }
  reply.set_lanes(plan.lanes);
  reply.set_data_token(token);
  reply.set_prefill(vram_->mode() == mover::IncomingVram::Mode::kPrefill);
  reply.set_image_region(kImageRegion);
  reply.set_image_region_bytes(room_->images().ring().size());
  reply.set_transport(plan.transport);
  reply.set_transport_reason(plan.reason);
  reply.set_encrypted(plan.encrypted);
  for (const auto& address : data->addresses()) *reply.add_data_addresses() = address;
  set_data(std::move(data));
  return fault::point("destination.prepared");
}

Status Course::fall_back(const proto::FallBackRequest& request, proto::FallBackReply& reply) {
  GCR_TRY(expect(commit::DestinationState::kBuilding, "FallBackRequest"));
  spdlog::info("the source cannot use RDMA, falling back to TCP: {}",
               control::printable(request.reason()));
  GCR_ASSIGN(const auto plan,
             plan_without_rdma(link_.wish, link_.source_offer, link_.offer, request.reason()));
  const std::lock_guard lock(data_mutex_);
  GCR_TRY(data_->fall_back(plan));
  GCR_TRY(open_all_regions(*data_));
  reply.set_encrypted(plan.encrypted);
  for (const auto& address : data_->addresses()) *reply.add_data_addresses() = address;
  return {};
}

Status Course::change_buffers(const proto::BuffersRequest& request, proto::BuffersReply& reply) {
  GCR_TRY(expect(commit::DestinationState::kBuilding, "BuffersRequest"));
  if (plan_.kept)
    return Error(Code::kProtocol, "the source changed the buffers of a suspended job");
  GCR_TRY(remove_buffers(request.removed_ids(), job_));
  GCR_TRY(remap_buffers(request.remapped(), job_));
  for (const std::uint64_t removed : request.removed_ids()) {
    const gpu::AllocationId id{removed};
    GCR_TRY(data_->receiver().remove_region(vram_->region(id).id));
    vram_->remove(id);
  }
  GCR_ASSIGN(const std::uint64_t room, room_for_buffers(*plan_.driver));
  GCR_ASSIGN(const auto buffers, add_buffers(request.added(), plan_.gpu_map, job_, room));
  GCR_TRY(allocate_buffers(buffers));
  for (const mover::IncomingVram::Wanted& buffer : buffers) {
    GCR_TRY(open_region(buffer.id, *data_));
    proto::BufferRegion& out = *reply.add_regions();
    out.set_buffer_id(buffer.id.value);
    out.set_region(vram_->region(buffer.id).id);
  }
  return {};
}

}  // namespace gcr::migration::destination

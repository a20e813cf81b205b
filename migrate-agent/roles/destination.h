// The destination's course: preflight, prepare, receive, restore, commit. proto/PROTOCOL.md has the
// state machine; `Destination::State` names its states. If the course ends before the
// commit, for whatever reason, destroying this object removes the migration from this host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/commit/commit_log.h"
#include "migrate-agent/data/incoming_data.h"
#include "migrate-agent/images/image_memory.h"
#include "migrate-agent/images/store.h"
#include "migrate-agent/landing/memory_reservation.h"
#include "migrate-agent/mover/incoming_vram.h"
#include "migrate-agent/roles/phases.h"
#include "migrate-agent/roles/request_checks.h"
#include "migrate-agent/roles/restored_process.h"
#include "migrate-agent/roles/roles.h"
#include "transport/channel.h"

namespace gcr::agent {

class Destination {
 public:
  explicit Destination(WorkerContext& context) : context_(context) {}

  ~Destination() { destroy(); }

  asio::awaitable<void> run(proto::PreflightRequest request);

 private:
  static constexpr transport::RegionId kImageRegion = 1;

  using Wanted = std::vector<mover::IncomingVram::Wanted>;
  /// See proto/PROTOCOL.md. Zero is never used.
  enum class State { kInvalid = 0, kPreflight, kPrepared, kRestored, kCommitted, kEnded };

  asio::awaitable<void> serve();
  asio::awaitable<void> take_data_connections();
  asio::awaitable<Result<proto::Envelope>> answer(const proto::Envelope& request);
  asio::awaitable<Result<proto::Envelope>> preflight(const proto::PreflightRequest& request);
  asio::awaitable<Status> begin();
  proto::PreflightReply look(const proto::PreflightRequest& request, const Status& room);
  asio::awaitable<Result<proto::Envelope>> prepare(const proto::PrepareRequest& request);
  Status make_room(const proto::PrepareRequest& request);
  Result<std::uint64_t> more_image_room(std::uint64_t bytes);
  landing::Memory landing_memory(const Wanted& wanted) const;
  Status reserve(const Wanted& wanted);
  Status place(const Wanted& wanted);
  Result<std::unique_ptr<IncomingData>> open_data(DataPlan& plan, const std::string& token);
  asio::awaitable<Result<proto::Envelope>> fall_back(const proto::FallBackRequest& request);
  asio::awaitable<Result<proto::Envelope>> change_buffers(const proto::BuffersRequest& request);
  asio::awaitable<Result<proto::Envelope>> restore(const proto::RestoreRequest& request);
  Result<process::VettedFiles> vet_files(const proto::RestoreRequest& request) const;
  Status restore_process(const proto::RestoreRequest& request,
                         const std::vector<images::NamedFile>& files, Phases& phases);
  asio::awaitable<Result<proto::Envelope>> commit(const proto::CommitRequest& request);
  asio::awaitable<Result<proto::Envelope>> abort(const proto::AbortRequest& request);
  asio::awaitable<Result<proto::Envelope>> answer_alive(const proto::Envelope& request);
  asio::awaitable<void> conclude();
  asio::awaitable<void> settle();
  void report_ending();
  journal::Began description(const proto::PreflightRequest& request) const;
  Status vote(Phases& phases);
  Status clear(commit::DestinationEvent why);
  void destroy();

  proto::GroupLimits limits_here(proto::GroupLimits limits) const;
  Status open_regions(const Wanted& wanted, IncomingData& data);
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);
  Status expect(State state, const char* request) const;

  WorkerContext& context_;
  State state_ = State::kPreflight;
  Uuid migration_;
  journal::Began began_;                       ///< from the preflight on
  bool is_migration_ = false;                  ///< not preflight alone
  std::optional<commit::DestinationLog> log_;  ///< from PrepareRequest on
  journal::Restored identity_;                 ///< from the vote on
  proto::MigrateReport report_;                ///< for the daemon: what this side knows
  Error cause_{Code::kCancelled, "the source ended it"};
  std::set<pid_t> running_;
  std::set<pid_t> used_pids_;
  std::shared_ptr<const device::Driver> driver_;
  std::vector<device::GpuPair> gpu_map_;
  std::optional<mover::IncomingVram> vram_;
  std::uint64_t image_bytes_ = 0;  ///< expected size of the images, from the source
  std::uint64_t image_room_ = 0;   ///< what is reserved for them
  std::unique_ptr<landing::MemoryReservation> memory_;
  std::optional<images::ImageMemory> image_memory_;
  std::unique_ptr<images::ImageStore> images_;
  proto::GroupLimits limits_;  ///< of the process, with this host's GPUs
  cgroups::Group group_;       ///< that the process is restored in, and stays in
  std::optional<criu::PreparedRestore> prepared_restore_;
  transport::RegionId next_region_ = kImageRegion + 1;
  // Written before a region is announced, read by the lanes' threads.
  std::mutex regions_mutex_;
  std::map<transport::RegionId, job::AllocationId> buffer_of_region_;
  std::map<job::AllocationId, transport::RegionId> region_of_buffer_;
  job::Job job_;
  DataWish wish_;
  proto::DataOffer source_offer_;
  proto::DataOffer offer_;
  std::unique_ptr<IncomingData> data_;  ///< changed by the io_context's thread only
  std::unique_ptr<RestoredProcess> process_;
};

}  // namespace gcr::agent

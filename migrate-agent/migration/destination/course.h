// The destination's course: preflight, prepare, receive, restore, commit. Each request of the
// source is one step; proto/PROTOCOL.md has the state machine. The journal's log has the state
// (migrate-agent/commit/states); before the journal exists, the migration is in preflight.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/sockets/connections.h"
#include "migrate-agent/gpu/host_copy/description.pb.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/incoming_vram.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/migration/destination/request_checks.h"
#include "migrate-agent/migration/destination/restored_process.h"
#include "migrate-agent/migration/destination/room.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/transfer/negotiation/incoming_data.h"
#include "migrate-agent/worker/runtime/context.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "proto/registry.pb.h"

namespace gcr::migration::destination {

/// All methods block, and belong to one thread at a time unless they say otherwise. If the course
/// ends before the commit for any reason, conclude() removes the migration from this host.
class Course {
 public:
  /// Create and destroy it on the thread that runs the worker's io_context.
  explicit Course(worker::WorkerContext& context);
  ~Course();

  /// Takes the step that `request` asks for, and gives its reply. After an Error, call fail(). Do
  /// not call it on the thread that runs the worker's io_context.
  Result<proto::Envelope> answer(const proto::Envelope& request);

  /// Ends the course after a failed step, or when the source is lost.
  void fail(const Error& error);

  /// Whether no further request is expected.
  bool ended() const { return ended_; }

  /// Ends the migration here. Before the vote, undoes everything. After it and without a decision,
  /// the copy stays frozen and a recovery asks the source. Gives the outcome for the daemon, also
  /// of a refused migration; nothing if the request was for preflight only.
  std::optional<registry::Outcome> conclude();

 private:
  static constexpr transport::RegionId kImageRegion = mover::IncomingVram::kFirstRegion - 1;

  using Wanted = std::vector<mover::IncomingVram::Wanted>;
  /// What preflight has found out about the process and this host.
  struct Plan {
    journal::Began began;
    bool is_migration = false;  ///< false: preflight only
    std::set<pid_t> running;
    ExpectedGpuUsers gpu_users;
    std::set<pid_t> used_pids;
    std::uint64_t image_bytes = 0;  ///< expected size of the images, from the source
    std::shared_ptr<const device::Driver> driver;
    std::vector<device::GpuPair> gpu_map;
    proto::GroupLimits limits;  ///< limits of the process, with this host's GPUs
    std::shared_ptr<const criu::Plugin> criu_plugin;  ///< null: no member needs one
    criu::PluginMap criu_plugin_map;                  ///< the GPUs that the plugin has to use
    std::map<std::string, std::string> interfaces;    ///< of began.network, by names at the source
    proto::JobContainer from_container;               ///< the container that the job leaves
    /// For a job that arrives suspended: the description that the keeper of its VRAM gets.
    std::optional<gpu::KeptCopy> kept;
  };

  /// The data channel: the source's wish, and what both sides offer.
  struct Link {
    transfer::DataWish wish;
    proto::DataOffer source_offer;
    proto::DataOffer offer;
  };

  void take_data_connection(UniqueFd socket);
  /// kProtocol unless the migration is in `state`; nothing: in preflight.
  Status expect(std::optional<commit::DestinationState> state, const char* request) const;
  void note_pause(const proto::ClockRequest& source);

  Status preflight(const proto::PreflightRequest& request, proto::PreflightReply& reply);
  Status find_container(const proto::PreflightRequest& request);
  Status check_container(const proto::PreflightRequest& request) const;
  Status in_place(const std::function<Status()>& work) const;
  Result<process::Addresses> addresses() const;
  Status compare_place(const proto::PreflightRequest& request, findings::Findings& findings);
  Status check_network(const proto::PreflightRequest& request, findings::Findings& findings);
  Result<std::vector<UniqueFd>> group_entries() const;
  Result<criu::RestoreContainer> restore_container() const;
  Status compare_hosts(const proto::PreflightRequest& request, const Status& room,
                       proto::PreflightReply& reply);
  journal::Began description(const proto::PreflightRequest& request) const;
  Status mark_hidden_gpus(proto::HostFacts& here) const;
  proto::GroupLimits limits_here(proto::GroupLimits limits) const;
  void hide_other_gpus(const proto::HostFacts& here);

  Status prepare(const proto::PrepareRequest& request, proto::PrepareReply& reply);
  Status begin();
  Status make_room(const proto::PrepareRequest& request, const Wanted& wanted, unsigned lanes);
  Status start_criu();
  void keep_description(const proto::PrepareRequest& request);
  Status allocate_buffers(const Wanted& wanted);
  Result<std::unique_ptr<transfer::IncomingData>> open_data(transfer::DataPlan& plan,
                                                            const std::string& token);
  Status open_all_regions(transfer::IncomingData& data);
  Status open_region(gpu::AllocationId id, transfer::IncomingData& data);
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);
  void set_data(std::unique_ptr<transfer::IncomingData> data);
  Status fall_back(const proto::FallBackRequest& request, proto::FallBackReply& reply);
  Status change_buffers(const proto::BuffersRequest& request, proto::BuffersReply& reply);

  Status carry(const proto::CarryRequest& request, proto::CarryReply& reply);
  Status apply_layers(const proto::RestoreRequest& request);
  Status make_files(const proto::RestoreRequest& request);

  Status restore(const proto::RestoreRequest& request, proto::RestoreReply& reply);
  Result<std::vector<process::VettedFiles>> vet_files(const proto::RestoreRequest& request) const;
  Result<criu::AdaptedSockets> adapt_sockets() const;
  Status restore_process(const proto::RestoreRequest& request,
                         const std::vector<images::ImageFile>& files);
  Status hand_over_vram(const proto::RestoreRequest& request);
  Status keep_vram(const proto::RestoreRequest& request);
  Status vote(const proto::RestoreRequest& request, proto::RestoreReply& reply);

  Status commit(const proto::CommitRequest& request, proto::Envelope& reply);
  Status abort(const proto::AbortRequest& request);
  Status settle();
  Status roll_back(commit::DestinationEvent why);
  void destroy();

  worker::WorkerContext& context_;
  std::atomic<bool> ended_ = false;
  Uuid migration_;
  Plan plan_;
  std::optional<procfs::Container> container_;  ///< that receives the job
  bool source_paused_ = false;                  ///< the source's last report
  std::optional<commit::DestinationLog> log_;   ///< exists from PrepareRequest on
  journal::Restored identity_;                  ///< set from the vote on
  /// Set after the commit. Empty: the copy runs; else why it was killed meanwhile.
  std::optional<std::string> released_;
  proto::MigrateReport report_;  ///< what this side reports to the daemon
  worker::Phases phases_{"destination",
                         worker::Phases::Clock::time_point{}};  ///< from the preflight to the vote
  Error cause_{Code::kCancelled, "the source ended the migration"};

  std::unique_ptr<Room> room_;
  gpu::Job job_;
  std::optional<mover::IncomingVram> vram_;
  cgroups::Group group_;  ///< the process is restored in it, and stays in it
  std::optional<criu::PreparedRestore> prepared_restore_;
  std::vector<memory_files::IncomingFile> files_;     ///< memory files that come with the job
  std::optional<memory_files::Incoming> made_files_;  ///< the same files, created by the restore
  std::unique_ptr<RestoredProcess> process_;
  std::optional<keeper::Keeper> keeper_;  ///< keeper of the VRAM of a suspended job
  Link link_;
  std::mutex data_mutex_;  ///< held while data_ changes, and in take_data_connection()
  std::unique_ptr<transfer::IncomingData> data_;
  bool window_is_open_ = false;  ///< whether data_'s receiver has the window
};

}  // namespace gcr::migration::destination

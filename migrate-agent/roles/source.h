// One migration away from this host: the object behind run_source(). source_prepare.cc has the
// steps before anything is copied, source_precopy.cc and source_switchover.cc the copying,
// source.cc the course as a whole with the commit, source_operator.cc what operators are told
// and may ask for.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/commit/commit_log.h"
#include "migrate-agent/data/negotiation.h"
#include "migrate-agent/images/scratch_directory.h"
#include "migrate-agent/images/sender.h"
#include "migrate-agent/keeper/keeper.h"
#include "migrate-agent/process/named_files.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/downtime_history.h"
#include "migrate-agent/roles/examination.h"
#include "migrate-agent/roles/operator_link.h"
#include "migrate-agent/roles/outgoing_images.h"
#include "migrate-agent/roles/peer_link.h"
#include "migrate-agent/roles/precopy.h"
#include "migrate-agent/roles/progress_meter.h"
#include "migrate-agent/roles/roles.h"
#include "migrate-agent/roles/source_process.h"
#include "src/base/uuid.h"

namespace gcr::agent {

class Source : public SourceControl {
 public:
  Source(WorkerContext& context, proto::MigrateRequest request);

  asio::awaitable<void> run();

  proto::Progress progress() override;
  Status go_on() override;
  Status adjust(const registry::Adjust& wanted) override;

 private:
  /// What an operator may still change.
  enum class Stage { kBeginning, kCopying, kSwitchingOver };

  asio::awaitable<void> migrate_guarded(std::exception_ptr& broken);
  asio::awaitable<void> migrate_and_report();
  asio::awaitable<void> heed_operator();
  asio::awaitable<void> show_progress();
  asio::awaitable<Status> migrate();
  asio::awaitable<Status> claim_process();
  asio::awaitable<Status> begin();
  asio::awaitable<Status> move_to_the_vote();
  asio::awaitable<Status> examine_process();
  asio::awaitable<Status> open_peer();
  asio::awaitable<Status> compare_clocks();
  asio::awaitable<Status> preflight();
  asio::awaitable<Status> prepare();
  asio::awaitable<Status> open_channel(proto::PrepareReply prepared);
  asio::awaitable<Status> fall_back(proto::PrepareReply& prepared, const Error& why);
  asio::awaitable<Status> precopy();
  asio::awaitable<Status> look();
  asio::awaitable<Status> copy_round(double share_held);
  asio::awaitable<Status> pause();
  asio::awaitable<Result<bool>> close_gate();
  asio::awaitable<Status> switch_over();
  asio::awaitable<Status> refresh_buffers();
  asio::awaitable<Status> send_last_round();
  asio::awaitable<Status> send_control_state();
  asio::awaitable<Status> restore_there();
  asio::awaitable<Status> check_before_commit();
  asio::awaitable<Status> commit();
  asio::awaitable<Result<proto::Envelope>> order_commit();
  asio::awaitable<Status> note(commit::SourceEvent event, journal::Record record);
  asio::awaitable<Status> give_up(Error cause);
  asio::awaitable<void> remember();
  void tell(const char* phase, std::string text);

  Status follow_allocations(proto::BuffersRequest& changes);
  Status take_over(std::vector<ExportedAllocation> exported, proto::BuffersRequest& changes);
  Status assign_regions(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions);
  Status judge(const std::vector<proto::Finding>& findings);
  Status send_round(double share_held);
  void expect_downtime_now();
  void count_undone_closing();
  Status may_be_changed() const;
  Status open_image_sender();
  Status ready_images();
  Status start_keeper();
  Status arm_keeper();
  Status check_alone() const;
  recovery::InHand in_hand();
  Error went_back(const Error& cause, const Status& undone);
  Status look_for_end();
  Error or_its_end(Error cause) const;
  void interrupt(Error why);
  Status check() const;
  Error interruption(Error error) const;
  void complete_report();
  journal::Began description() const;
  registry::Outcome ending() const;

  WorkerContext& context_;
  proto::MigrateRequest request_;
  PrecopyLimits limits_;
  Uuid migration_ = Uuid::random();
  Phases::Clock::time_point start_ = Phases::Clock::now();
  std::optional<Phases::Clock::time_point> gate_closed_at_;
  Phases::Clock::duration undone_closings_{};  ///< of the gate, which opened again here
  Phases phases_;
  proto::MigrateReport report_;
  Phases::Clock::duration clock_offset_{};  // the destination's clock minus ours

  OperatorLink operator_;
  std::string phase_;  ///< as last told to the operator
  Stage stage_ = Stage::kBeginning;
  bool paused_ = false;
  bool may_switch_over_ = false;  ///< an operator's ContinueRequest
  asio::steady_timer pause_;
  ProgressMeter meter_;
  std::string kind_;  ///< of program, and
  bool prefill_ = false;
  SteadyDowntime steady_;  ///< what this kind takes
  Phases::Clock::duration last_round_took_{};
  Phases::Clock::duration control_took_{};

  MovableProcess claimed_;
  journal::ProcessIds members_;           ///< of the job: the claimed process
  std::optional<commit::SourceLog> log_;  ///< once both sides have agreed to the migration
  bool detaching_noted_ = false;
  std::optional<Error> interrupted_;  ///< cancelled, or the destination is gone
  std::optional<keeper::Keeper> keeper_;
  std::optional<std::vector<job::Mapping>> kept_;  ///< what the keeper holds, once armed
  std::optional<Examination> found_;               ///< until both preflights are done
  std::shared_ptr<const device::Driver> driver_;
  control::Endpoint destination_;
  std::optional<procfs::Process> handle_;  ///< of the claimed process
  std::optional<SourceProcess> process_;
  job::Job job_;
  proto::ProcessFacts facts_;
  std::unique_ptr<PeerLink> peer_;
  std::array<std::byte, 32> key_bytes_{};
  std::optional<images::ScratchDirectory> scratch_;
  std::optional<mover::OutgoingVram> vram_;
  DataWish wish_;
  proto::DataOffer offer_;
  std::unique_ptr<transport::Channel> channel_;
  std::optional<Precopy> precopy_;
  std::optional<OutgoingImages> images_;
  std::unique_ptr<images::ImageSender> image_sender_;
  std::pair<transport::RegionId, std::uint64_t> image_region_;  // and its bytes
  images::SentImages sent_images_;
  criu::DumpReport dumped_;
  std::vector<process::NamedFile> named_;
};

}  // namespace gcr::agent

// Another agent as the target: requests use the control channel, data a separate channel.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "migrate-agent/migration/target/agent/peer_link.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/transfer/images/sender.h"
#include "src/base/random.h"
#include "src/base/uuid.h"
#include "src/control/ask.h"

namespace gcr::migration {

class AgentTarget : public Target {
 public:
  /// Does not connect yet. `io` runs on another thread, which may also destroy this object.
  /// `on_lost` is called on that thread, at most once, if the agent is lost while no call waits for
  /// it; it may be called shortly after this object is destroyed.
  AgentTarget(asio::io_context& io, control::AgentAddress agent, Uuid migration,
              std::function<void(const Error&)> on_lost);
  /// interrupt() must not be under way.
  ~AgentTarget() override;

  std::string name() const override { return agent_.endpoint.to_string(); }
  std::string common_name() const override;
  Result<proto::PreflightReply> preflight(const proto::PreflightRequest& request) override;
  std::array<std::byte, 32> digest_key() override { return random_bytes<32>(); }
  Result<PreparedTarget> prepare(const proto::PrepareRequest& request) override;
  transport::Channel& channel() override { return *channel_; }
  Result<proto::BuffersReply> change(const proto::BuffersRequest& request) override;
  Result<images::Sink*> image_sink(store::Compression compression,
                                   double link_bytes_per_s) override;
  /// image_sink() with its concrete type; valid until the next call of either.
  Result<images::ImageSender*> image_sender(store::Compression compression,
                                            double link_bytes_per_s);
  void tell_paused(bool paused) override;
  Result<proto::CarryReply> carry(const proto::CarryRequest& request) override;
  Result<proto::RestoreReply> restore(const proto::RestoreRequest& request) override;
  Result<commit::CommitAnswer> commit() override;
  void abort(const std::string& reason) override;
  void interrupt(const Error& why) override;

 private:
  asio::awaitable<Status> connect();
  asio::awaitable<Result<proto::Envelope>> call(proto::Envelope request);
  template <class Request>
  Result<proto::Envelope> ask(Request* (proto::Envelope::*field)(), const Request& request);
  asio::awaitable<Status> compare_clocks(PreparedTarget& prepared);
  Status open_channel(const proto::PrepareRequest& request, proto::PrepareReply& prepared);
  Status fall_back(proto::PrepareReply& prepared, const Error& why);
  Status check() const;

  asio::io_context& io_;
  const control::AgentAddress agent_;
  const Uuid migration_;
  const std::function<void(const Error&)> on_lost_;

  mutable std::mutex mutex_;  ///< protects the next three members, which interrupt() uses
  std::optional<Error> interrupted_;
  std::shared_ptr<PeerLink> link_;  ///< used and destroyed on the thread of `io_`
  std::unique_ptr<transport::Channel> channel_;

  std::array<std::byte, 32> secret_{};
  transport::RegionId image_region_ = 0;
  std::uint64_t image_region_bytes_ = 0;
  std::unique_ptr<images::ImageSender> images_;
  double clock_offset_ms_ = 0;
};

}  // namespace gcr::migration

// A store of checkpoints as the target. Nothing is restored. The vote is that all data is on disk,
// under a name that no restore reads; the commit gives the checkpoint its name.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/migration/target/store/chunk_channel.h"
#include "migrate-agent/migration/target/store/image_sink.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/uuid.h"
#include "store/writer.h"

namespace gcr::migration {

/// Checks that the directory has space for a checkpoint of `job`, as its preflight describes it;
/// creates nothing. Adds findings if it does not; the Error is for a directory that cannot be used.
Status check_room(const proto::CheckpointOrder& order, const store::Owner& owner,
                  const proto::PreflightRequest& job, findings::Findings& findings);

/// Accepts checkpoints signed by this agent, or by one whose migrations it accepts ([[peers]]).
/// kInvalidArgument if its own certificate cannot be read. `config` outlives the rule.
Result<store::SignerRule> signer_rule(const worker::Config& config);

class CheckpointTarget : public Target {
 public:
  /// `order` is the requested one, with a name. The directory's files belong to `owner`;
  /// `originals` are the job's members. `config` outlives this object.
  CheckpointTarget(const worker::Config& config, proto::CheckpointOrder order,
                   proto::Compression compression, Uuid migration, const store::Owner& owner,
                   const journal::ProcessIds& originals)
      : config_(config),
        order_(std::move(order)),
        compression_(compression),
        migration_(migration),
        owner_(owner) {
    *manifest_.mutable_originals() = originals;
  }

  std::string name() const override { return order_.directory(); }
  std::string common_name() const override { return {}; }
  Result<proto::PreflightReply> preflight(const proto::PreflightRequest& request) override;
  std::array<std::byte, 32> digest_key() override { return writer_->digest_key(); }
  Result<PreparedTarget> prepare(const proto::PrepareRequest& request) override;
  transport::Channel& channel() override { return *channel_; }
  bool has_chunk(transport::RegionId region, std::uint64_t offset, const digest::Digest& digest,
                 std::uint64_t length_bytes) override {
    return channel_->take_known(region, offset, digest, length_bytes);
  }
  void clear_chunk(transport::RegionId region, std::uint64_t offset) override {
    channel_->clear(region, offset);
  }
  Result<proto::BuffersReply> change(const proto::BuffersRequest& request) override;
  Result<images::Sink*> image_sink(store::Compression compression,
                                   double link_bytes_per_s) override;
  void tell_paused(bool) override {}
  Result<proto::CarryReply> carry(const proto::CarryRequest& request) override;
  Result<proto::RestoreReply> restore(const proto::RestoreRequest& request) override;
  Result<commit::CommitAnswer> commit() override;
  void abort(const std::string& reason) override;
  void interrupt(const Error& why) override;

 private:
  struct Region {
    transport::RegionId id;
    proto::Buffer buffer;
  };

  Status open(const proto::PreflightRequest& request);
  void add_buffers(const google::protobuf::RepeatedPtrField<proto::Buffer>& buffers,
                   google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions);
  Status describe_vram(const proto::RestoreRequest& request);
  Status prune();

  const worker::Config& config_;
  const proto::CheckpointOrder order_;
  const proto::Compression compression_;
  const Uuid migration_;
  const store::Owner owner_;
  proto::Manifest manifest_;
  std::unique_ptr<store::Writer> writer_;
  std::unique_ptr<ChunkChannel> channel_;
  std::unique_ptr<CheckpointSink> sink_;
  std::map<std::uint64_t, Region> buffers_;  ///< by the buffer's id
  transport::RegionId next_region_ = 1;
  std::mutex mutex_;  ///< for interrupt(), and while channel_ and sink_ are created
  std::optional<Error> interrupted_;
};

}  // namespace gcr::migration

#include "migrate-agent/migration/target/store/checkpoint_target.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/worker/config/certificates.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/base/users.h"
#include "store/upkeep.h"

namespace gcr::migration {
namespace {

std::int64_t unix_ms() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             system_clock::now().time_since_epoch())
      .count();
}

store::Codec codec_of(proto::Compression compression) {
  switch (compression) {
    case proto::COMPRESSION_ZSTD:
      return store::Codec::kZstd;
    case proto::COMPRESSION_LZ4:
      return store::Codec::kLz4;
    default:
      return store::Codec::kNone;
  }
}

/// The kernel writes a file for one thread at a time: 2 to 3 GB/s in memory.
unsigned packs_here() { return std::clamp(std::thread::hardware_concurrency(), 4U, 16U); }

std::uint64_t expected_bytes(const proto::PreflightRequest& request) {
  std::uint64_t bytes = 0;
  for (const proto::Buffer& buffer : request.buffers()) bytes += buffer.size_bytes();
  for (const proto::ProcessFacts& member : request.members()) {
    bytes += std::max(member.image_bytes(), member.resident_bytes());
  }
  return bytes;
}

/// Whether the owner can make a directory there.
Status check_may_write(const std::filesystem::path& parent, const store::Owner& owner) {
  GCR_ASSIGN(const store::AsOwner as, store::AsOwner::take(owner));
  if (::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
  return Error::from_errno(errno, fmt::format("{} cannot make a directory of checkpoints in {}",
                                              describe_user(owner.uid), parent.native()));
}

/// The free space, asked as the owner: root may have no access to a network file system.
Result<struct statvfs> room_of(const std::filesystem::path& directory, const store::Owner& owner) {
  GCR_ASSIGN(const store::AsOwner as, store::AsOwner::take(owner));
  struct statfs kind {};
  if (::statfs(directory.c_str(), &kind) == 0 && kind.f_type == HUGETLBFS_MAGIC) {
    return Error(Code::kUnsupported,
                 fmt::format("{} is on a hugetlbfs, whose files can only be mapped, not written: "
                             "name a directory on a tmpfs, which may be mounted with huge=always",
                             directory.native()));
  }
  struct statvfs room {};
  if (::statvfs(directory.c_str(), &room) == 0) return room;
  return Error::from_errno(errno,
                           fmt::format("cannot read the free space of {}", directory.string()));
}

}  // namespace

/// Compares the free space with the size of the whole checkpoint. How much of it earlier
/// checkpoints in the directory have becomes known only when it is written.
Status check_room(const proto::CheckpointOrder& order, const store::Owner& owner,
                  const proto::PreflightRequest& job, findings::Findings& findings) {
  std::filesystem::path directory = order.directory();
  bool has_others = false;
  const auto opened = store::Directory::open(directory, owner);
  if (opened) {
    GCR_ASSIGN(const auto others, opened->names());
    has_others = !others.empty();
  } else if (opened.error().code() == Code::kNotFound) {
    directory = directory.parent_path();
    GCR_TRY(check_may_write(directory, owner));
  } else {
    return opened.error();
  }
  GCR_ASSIGN(const struct statvfs room, room_of(directory, owner));
  const std::uint64_t free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  const std::uint64_t bytes = expected_bytes(job);
  if (free_bytes >= bytes) return {};
  findings.add(has_others ? findings::kCheckpointRoomShort : findings::kCheckpointRoom,
               fmt::format("{} has {} free, and the checkpoint needs up to {}", directory.string(),
                           format_bytes(free_bytes), format_bytes(bytes)));
  return {};
}

Result<store::SignerRule> signer_rule(const worker::Config& config) {
  GCR_ASSIGN(const std::string self, store::own_name(config.tls));
  return [&peers = config.peers, self](const std::string& agent) {
    return worker::check_peer(peers, self, agent, "checkpoints");
  };
}

Status CheckpointTarget::open(const proto::PreflightRequest& request) {
  GCR_ASSIGN(auto directory, store::Directory::create(order_.directory(), owner_));
  GCR_ASSIGN(store::SignerRule rule, signer_rule(config_));
  GCR_ASSIGN(writer_, store::Writer::create(std::move(directory), {.checkpoint = migration_,
                                                                   .name = order_.name(),
                                                                   .codec = codec_of(compression_),
                                                                   .packs = packs_here(),
                                                                   .tls = config_.tls,
                                                                   .rule = std::move(rule)}));
  *manifest_.mutable_job() = request;
  return {};
}

Result<proto::PreflightReply> CheckpointTarget::preflight(const proto::PreflightRequest& request) {
  findings::Findings findings(findings::Side::kSource);
  if (request.has_from_container() && owner_.uid != 0) {
    return Error(Code::kRefused, "the job has come into its container since it was claimed");
  }
  GCR_TRY(check_room(order_, owner_, request, findings));
  if (!findings.has_blocker()) GCR_TRY(open(request));
  proto::PreflightReply reply;
  for (proto::Finding& finding : findings.release()) *reply.add_findings() = std::move(finding);
  return reply;
}

void CheckpointTarget::add_buffers(
    const google::protobuf::RepeatedPtrField<proto::Buffer>& buffers,
    google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  for (const proto::Buffer& buffer : buffers) {
    const Region region{next_region_++, buffer};
    channel_->add_region(region.id, buffer.size_bytes());
    proto::BufferRegion& out = *regions.Add();
    out.set_buffer_id(buffer.id());
    out.set_region(region.id);
    buffers_.emplace(buffer.id(), region);
  }
}

Result<PreparedTarget> CheckpointTarget::prepare(const proto::PrepareRequest& request) {
  PreparedTarget prepared;
  const std::lock_guard lock(mutex_);
  if (interrupted_) return *interrupted_;
  channel_ = std::make_unique<ChunkChannel>(*writer_);
  sink_ = std::make_unique<CheckpointSink>(*writer_);
  add_buffers(request.buffers(), *prepared.reply.mutable_regions());
  prepared.reply.set_prefill(true);
  prepared.reply.set_lanes(channel_->useful_writers());
  return prepared;
}

Result<proto::BuffersReply> CheckpointTarget::change(const proto::BuffersRequest& request) {
  proto::BuffersReply reply;
  for (const std::uint64_t id : request.removed_ids()) {
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) continue;
    channel_->remove_region(found->second.id);
    buffers_.erase(found);
  }
  for (const proto::Buffer& buffer : request.remapped()) buffers_.at(buffer.id()).buffer = buffer;
  add_buffers(request.added(), *reply.mutable_regions());
  return reply;
}

Result<images::Sink*> CheckpointTarget::image_sink(store::Compression, double) {
  return sink_.get();
}

/// Wants all memory files, because the host of a restore may have none of them.
Result<proto::CarryReply> CheckpointTarget::carry(const proto::CarryRequest& request) {
  *manifest_.mutable_files() = request;
  proto::CarryReply reply;
  for (int place = 0; place < request.files_size(); ++place) {
    reply.add_wanted(static_cast<std::uint32_t>(place));
  }
  return reply;
}

Status CheckpointTarget::describe_vram(const proto::RestoreRequest& request) {
  for (const proto::BufferDigests& digests : request.digests()) {
    const auto found = buffers_.find(digests.buffer_id());
    if (found == buffers_.end()) {
      return Error(Code::kInternal, fmt::format("buffer {} was never stored", digests.buffer_id()));
    }
    const auto& [region, buffer] = found->second;
    *manifest_.add_buffers() = buffer;
    manifest_.set_vram_bytes(manifest_.vram_bytes() + buffer.size_bytes());
    proto::StoredBuffer& stored = *manifest_.add_vram();
    stored.set_buffer_id(buffer.id());
    stored.set_digests(digests.digests());
    for (const auto& content : channel_->contents(region)) {
      stored.add_contents(content ? *content + 1 : 0);
    }
  }
  return {};
}

Result<proto::RestoreReply> CheckpointTarget::restore(const proto::RestoreRequest& request) {
  GCR_TRY(fault::point("source.checkpoint.stored"));
  GCR_TRY(describe_vram(request));
  *manifest_.mutable_members() = request.members();
  *manifest_.mutable_layers() = request.layers();
  sink_->describe(manifest_);
  manifest_.set_taken_unix_ms(unix_ms());
  manifest_.set_agent(config_.host);
  manifest_.set_stopped(order_.stop());
  GCR_ASSIGN(const images::SentImages images, sink_->finish());
  manifest_.set_memory_bytes(images.sent_bytes);
  GCR_TRY(writer_->seal(manifest_));
  GCR_TRY(fault::point("source.checkpoint.sealed"));
  proto::RestoreReply vote;
  vote.set_prefilled(true);
  vote.set_stored_bytes(writer_->new_bytes());
  vote.set_shared_bytes(writer_->shared_bytes());
  for (const proto::StoredBuffer& buffer : manifest_.vram()) {
    vote.set_verified_chunks(vote.verified_chunks() +
                             static_cast<std::uint64_t>(buffer.contents_size()));
  }
  return vote;
}

Result<commit::CommitAnswer> CheckpointTarget::commit() {
  GCR_TRY(fault::point("source.committed"));
  GCR_TRY(writer_->publish());
  const Status pruned = prune();
  if (!pruned) spdlog::warn("cannot remove older checkpoints: {}", pruned.error().message());
  return commit::CommitAnswer(proto::CommitReply());
}

Status CheckpointTarget::prune() {
  if (order_.keep() == 0) return {};
  GCR_ASSIGN(const auto directory, store::Directory::open(order_.directory(), owner_));
  GCR_ASSIGN(const store::Pruned pruned,
             store::prune_job(directory, order_.keep(), manifest_, config_.tls));
  for (const std::string& name : pruned.removed) spdlog::info("removed the checkpoint {}", name);
  return {};
}

void CheckpointTarget::abort(const std::string&) {
  if (writer_ == nullptr) return;
  writer_.reset();
  const auto directory = store::Directory::open(order_.directory(), owner_);
  if (!directory) return;
  const Status discarded = store::discard(*directory, migration_, order_.name());
  if (!discarded) {
    spdlog::warn("cannot remove the files of the aborted checkpoint: {}",
                 discarded.error().message());
  }
}

void CheckpointTarget::interrupt(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (!interrupted_) interrupted_ = why;
  if (channel_ != nullptr) channel_->cancel();
  if (sink_ != nullptr) sink_->cancel(why);
}

}  // namespace gcr::migration

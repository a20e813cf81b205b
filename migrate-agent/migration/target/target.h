// Where the source moves a process to: another agent (migrate-agent/migration/target/agent), or
// whatever else can take it and restore it; a store of checkpoints
// (migrate-agent/migration/target/store) keeps it.
//
// Methods block and belong to one thread, in the order in which they are declared here; interrupt()
// alone may be called from any thread. After an error of preflight(), prepare(), change() or
// restore() only abort() is left.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/gpu/mover/chunk_sender.h"
#include "migrate-agent/transfer/images/sink.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::migration {

struct PreparedTarget {
  proto::PrepareReply reply;   ///< as the data goes in the end, with all notes
  double clock_offset_ms = 0;  ///< the target's clock minus ours
  double clock_error_ms = 0;
};

/// What the target is told of the images.
inline void add_files(const images::SentImages& sent, proto::RestoreRequest& request) {
  for (const images::ImageFile& file : sent.files) {
    proto::ImageFile& out = *request.add_files();
    out.set_name(file.name);
    out.set_size_bytes(file.size_bytes);
    out.set_id(file.id);
    out.set_digest(file.digest.to_bytes());
  }
}

inline void add_digests(const mover::VramDigests& digests, proto::RestoreRequest& request) {
  for (const auto& [id, of_buffer] : digests) {
    proto::BufferDigests& out = *request.add_digests();
    out.set_buffer_id(id.value);
    out.set_digests(of_buffer.data(), of_buffer.size() * sizeof(digest::Digest));
  }
}

class Target : public mover::ChunkTarget {
 public:
  /// For journals and texts: "node2:7411".
  virtual std::string name() const = 0;

  /// The common name of its certificate; empty before preflight(), or if it has none.
  virtual std::string common_name() const = 0;

  virtual Result<proto::PreflightReply> preflight(const proto::PreflightRequest& request) = 0;

  /// After preflight(). The secret of the key under which chunks and images are digested.
  virtual std::array<std::byte, 32> digest_key() = 0;

  /// Makes room, and connects channel(), which lives as long as the target. Chunks are sent after
  /// it.
  virtual Result<PreparedTarget> prepare(const proto::PrepareRequest& request) = 0;

  /// Makes room for other buffers.
  virtual Result<proto::BuffersReply> change(const proto::BuffersRequest& request) = 0;

  /// Makes what images go to; once. Lives as long as the target. `link_bytes_per_s` is what was
  /// measured; 0: unknown.
  virtual Result<images::Sink*> image_sink(store::Compression compression,
                                           double link_bytes_per_s) = 0;

  /// The source waits for its operator before the switchover, or no longer does. Never blocks.
  virtual void tell_paused(bool paused) = 0;

  /// After the dump: which files in memory are to be sent, as images.
  virtual Result<proto::CarryReply> carry(const proto::CarryRequest& request) = 0;

  /// The target's vote. Its phases are on the time axis of this host's monotonic clock.
  virtual Result<proto::RestoreReply> restore(const proto::RestoreRequest& request) = 0;

  /// One attempt. After an error it is not known whether the target has heard of the commit.
  virtual Result<commit::CommitAnswer> commit() = 0;

  /// Tells the target, if it can still be reached, that nothing more comes.
  virtual void abort(const std::string& reason) = 0;

  /// From now on waits for the target fail, those that have begun already and those to come; only
  /// commit() and abort() are still tried. Never blocks.
  virtual void interrupt(const Error& why) = 0;
};

}  // namespace gcr::migration

// The target of a migration: another agent (migrate-agent/migration/target/agent), which restores
// the process, or a store (migrate-agent/migration/target/store), which keeps it as a checkpoint.
//
// Methods block and belong to one thread, in the order in which they are declared here; only
// interrupt() may be called from any thread. After an error of preflight(), prepare(), change() or
// restore(), only abort() may be called.
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
  proto::PrepareReply reply;   ///< after a fall-back, if there was one; with all notes
  double clock_offset_ms = 0;  ///< the target's clock minus ours
  double clock_error_ms = 0;
};

/// Adds the image files to `request`.
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
  /// The target's name in journals and messages: "node2:7411".
  virtual std::string name() const = 0;

  /// The common name of the target's certificate; empty before preflight(), or if it has none.
  virtual std::string common_name() const = 0;

  virtual Result<proto::PreflightReply> preflight(const proto::PreflightRequest& request) = 0;

  /// The secret of the key under which chunks and images are digested. Call it after preflight().
  virtual std::array<std::byte, 32> digest_key() = 0;

  /// Allocates memory for the buffers and connects channel(), which lives as long as the target.
  virtual Result<PreparedTarget> prepare(const proto::PrepareRequest& request) = 0;

  /// Adds, remaps and removes buffers while the copy is in progress.
  virtual Result<proto::BuffersReply> change(const proto::BuffersRequest& request) = 0;

  /// Creates the sink for images; call it once. The sink lives as long as the target.
  /// `link_bytes_per_s` is the measured rate; 0: unknown.
  virtual Result<images::Sink*> image_sink(store::Compression compression,
                                           double link_bytes_per_s) = 0;

  /// Tells the target whether the source waits for its operator. Never blocks.
  virtual void tell_paused(bool paused) = 0;

  /// After the dump: asks which memory files are to be sent as images.
  virtual Result<proto::CarryReply> carry(const proto::CarryRequest& request) = 0;

  /// Gets the target's vote. The times of its phases are on this host's monotonic clock.
  virtual Result<proto::RestoreReply> restore(const proto::RestoreRequest& request) = 0;

  /// Orders the commit once. After an Error it is unknown whether the target has received it.
  virtual Result<commit::CommitAnswer> commit() = 0;

  /// Tells the target, if it can still be reached, that the migration is aborted.
  virtual void abort(const std::string& reason) = 0;

  /// Makes all waits fail, now and later, but those of commit() and abort(). Never blocks.
  virtual void interrupt(const Error& why) = 0;
};

}  // namespace gcr::migration

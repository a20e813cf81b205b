// Pre-copy: the rounds that copy VRAM to the destination while the process runs, and the last
// round, with the gate closed (design decision 2). Methods block; one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "migrate-agent/gpu/access/throttle.h"
#include "migrate-agent/gpu/mover/outgoing_vram.h"
#include "migrate-agent/migration/engine/convergence.h"
#include "migrate-agent/migration/engine/progress_meter.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "proto/control.pb.h"

namespace gcr::migration {

class Precopy {
 public:
  /// The arguments by reference outlive this object.
  Precopy(mover::OutgoingVram& vram, mover::ChunkTarget& target, worker::Phases& phases,
          ProgressMeter& meter, PrecopyLimits limits)
      : vram_(vram), target_(target), phases_(phases), meter_(meter), convergence_(limits) {}

  /// Digests VRAM and finds what the destination lacks.
  Status find_dirty();

  /// Sends the chunks that find_dirty() found, as one round. `throttle` throttles the process
  /// meanwhile; null: it is the last round, with the gate closed.
  Status send(const gpu::Throttle* throttle);

  /// The bytes that find_dirty() found.
  std::uint64_t remaining_bytes() const { return dirty_ ? dirty_->bytes : 0; }
  /// The duration of the last find_dirty().
  double digest_ms() const { return digest_ms_; }
  Convergence& convergence() { return convergence_; }

  std::vector<proto::Round>& rounds() { return rounds_; }

 private:
  mover::OutgoingVram& vram_;
  mover::ChunkTarget& target_;
  worker::Phases& phases_;
  ProgressMeter& meter_;
  Convergence convergence_;
  std::optional<mover::OutgoingVram::Dirty> dirty_;
  worker::Phases::Clock::time_point digest_began_{};
  double digest_ms_ = 0;
  std::vector<proto::Round> rounds_;
};

}  // namespace gcr::migration

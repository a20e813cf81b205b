// All fault points of the agent (migrate-agent/base/fault/fault.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace gcr::fault {

enum class Side : std::uint8_t { kSource, kDestination, kEither };

enum class Kind : std::uint8_t {
  kBoundary,    ///< between two phases of the course
  kCheckpoint,  ///< between two phases of taking or loading a checkpoint alone
  kSuspension,  ///< between two phases of a suspend or a resume
  kSlurm,       ///< around the adoption by a Slurm job
  kContainer,   ///< around a container's leaving and receiving of the job
  kNetwork,     ///< around the addresses of a container that move with the job
  kRecovery,    ///< in what cleans up after a crash
  kCorruption,  ///< for armed(): bytes are corrupted
  kFailure,     ///< a lower-level call that fails; `error` only
  kCheck,       ///< for armed(): an assumption is checked
};

struct Point {
  std::string_view name;
  Side side;
  Kind kind;
  bool decided;  ///< the source's commit is durable: the process will run at the destination
};

inline constexpr Point kPoints[] = {
    {"source.began", Side::kSource, Kind::kBoundary, false},
    {"source.connected", Side::kSource, Kind::kBoundary, false},
    {"source.preflighted", Side::kSource, Kind::kBoundary, false},
    {"source.prepared", Side::kSource, Kind::kBoundary, false},
    {"source.copied", Side::kSource, Kind::kBoundary, false},  // after every round
    {"source.closing", Side::kSource, Kind::kBoundary, false},
    {"source.gated", Side::kSource, Kind::kBoundary, false},
    {"source.detached", Side::kSource, Kind::kBoundary, false},
    {"source.locked", Side::kSource, Kind::kBoundary, false},
    {"source.checkpointed", Side::kSource, Kind::kBoundary, false},
    {"source.dumped", Side::kSource, Kind::kBoundary, false},
    {"source.flushed", Side::kSource, Kind::kBoundary, false},
    {"source.awaiting", Side::kSource, Kind::kBoundary, false},  // RestoreRequest is not sent
    {"source.voted", Side::kSource, Kind::kBoundary, false},     // RestoreReply has come
    {"source.committed", Side::kSource, Kind::kBoundary, true},  // CommitRequest is not sent
    {"source.confirmed", Side::kSource, Kind::kBoundary, true},  // CommitReply has come
    {"source.killed", Side::kSource, Kind::kBoundary, true},     // Finished is not written
    {"destination.began", Side::kDestination, Kind::kBoundary, false},
    {"destination.preflighted", Side::kDestination, Kind::kBoundary, false},
    {"destination.prepared", Side::kDestination, Kind::kBoundary, false},
    {"destination.imaged", Side::kDestination, Kind::kBoundary, false},
    {"destination.carried", Side::kDestination, Kind::kBoundary, false},  // files have their names
    {"destination.criu-restored", Side::kDestination, Kind::kBoundary, false},
    {"destination.frozen", Side::kDestination, Kind::kBoundary, false},
    {"destination.control-restored", Side::kDestination, Kind::kBoundary, false},
    {"destination.attached", Side::kDestination, Kind::kBoundary, false},
    {"destination.verified", Side::kDestination, Kind::kBoundary, false},
    {"destination.stopped", Side::kDestination, Kind::kBoundary, false},   // no vote is written
    {"destination.restored", Side::kDestination, Kind::kBoundary, false},  // RestoreReply not sent
    {"destination.told", Side::kDestination, Kind::kBoundary, true},       // nothing is written
    {"destination.committed", Side::kDestination, Kind::kBoundary, true},  // before SIGCONT
    {"destination.resumed", Side::kDestination, Kind::kBoundary, true},    // CommitReply not sent
    {"destination.finished", Side::kDestination, Kind::kBoundary, true},
    {"source.checkpoint.stored", Side::kSource, Kind::kCheckpoint, false},  // all is written
    {"source.checkpoint.sealed", Side::kSource, Kind::kCheckpoint, false},  // it has no name
    {"source.load.began", Side::kSource, Kind::kCheckpoint, false},
    {"source.load.prepared", Side::kSource, Kind::kCheckpoint, false},
    {"source.load.sent", Side::kSource, Kind::kCheckpoint, false},
    {"source.load.voted", Side::kSource, Kind::kCheckpoint, false},
    {"source.suspend.copied", Side::kSource, Kind::kSuspension, false},  // all is in host memory
    {"source.suspend.kept", Side::kSource, Kind::kSuspension, false},    // Suspended is not written
    {"source.suspend.decided", Side::kSource, Kind::kSuspension, false},  // VRAM is still there
    {"source.suspend.released", Side::kSource, Kind::kSuspension, false},
    {"source.resume.begun", Side::kSource, Kind::kSuspension, false},
    {"source.resume.loaded", Side::kSource, Kind::kSuspension, false},
    {"source.resume.kept", Side::kSource, Kind::kSuspension, false},     // Resuming is not written
    {"source.resume.decided", Side::kSource, Kind::kSuspension, false},  // it is stopped
    {"source.resume.running", Side::kSource, Kind::kSuspension, false},  // Finished is not written
    {"source.suspension.ended", Side::kSource, Kind::kSuspension,
     true},  // for a job that has moved
    {"destination.suspended", Side::kDestination, Kind::kSuspension,
     true},                                                            // it has arrived suspended
    {"destination.joining", Side::kDestination, Kind::kSlurm, true},   // Committed is written
    {"destination.joined", Side::kDestination, Kind::kSlurm, true},    // before SIGCONT
    {"source.container.left", Side::kSource, Kind::kContainer, true},  // its copy is not killed
    {"destination.container.told", Side::kDestination, Kind::kContainer, true},  // before SIGCONT
    {"destination.container.joined", Side::kDestination, Kind::kContainer, true},
    {"source.network.down", Side::kSource, Kind::kNetwork, false},             // not dumped
    {"destination.network.taken", Side::kDestination, Kind::kNetwork, false},  // none answers
    {"destination.network.up", Side::kDestination, Kind::kNetwork, true},      // before SIGCONT
    {"source.recovery.begun", Side::kSource, Kind::kRecovery, false},
    {"source.recovery.resumed", Side::kSource, Kind::kRecovery, false},
    {"destination.recovery.begun", Side::kDestination, Kind::kRecovery, false},
    {"destination.recovery.asked", Side::kDestination, Kind::kRecovery, false},
    {"source.chunk.corrupt", Side::kSource, Kind::kCorruption, false},  // digested, not yet sent
    {"destination.landing.corrupt", Side::kDestination, Kind::kCorruption, false},
    {"destination.vram.corrupt", Side::kDestination, Kind::kCorruption, false},
    {"journal.append", Side::kEither, Kind::kFailure, false},
    {"source.memory.check", Side::kSource, Kind::kCheck, false},  // tracked memory is also read
};

}  // namespace gcr::fault

// A keeper holds the descriptors of a job's VRAM while its members are detached, so that the memory
// outlives the worker that moves it. It is a small process (gcr-keeper) in a session of its own
// that never touches CUDA: the driver keeps the memory behind a descriptor as long as any process
// holds it. There is no protocol: a process that knows the keeper's ProcessId and may ptrace it
// copies its descriptors with pidfd_getfd.
//
// Methods block for milliseconds; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::keeper {

/// A descriptor, which is not owned here, of a buffer that a member maps.
struct BufferDescriptor {
  gpu::Mapping mapping;
  int fd = -1;
};

/// The keeper of one migration, a child of this process. Move-only. While it is not armed it ends
/// with this process. Destroying an unarmed one ends it; an armed one stays.
class Keeper {
 public:
  /// Starts `program` and waits until it is ready to be armed. It inherits only its socket.
  static Result<Keeper> start(const std::filesystem::path& program);
  /// Starts the gcr-keeper that is installed in the same folder as the agent's reaper.
  static Result<Keeper> start_installed(const std::filesystem::path& reaper);

  Keeper(Keeper&& other) noexcept;
  Keeper& operator=(Keeper&& other) noexcept;
  ~Keeper();

  /// For the journal, before it is armed.
  journal::ProcessId id() const;

  /// Hands over copies of the descriptors, at most kMaxBuffers; once. On success the keeper holds
  /// all of them until it is ended. On failure it is not armed and can only be ended.
  /// kResourceExhausted if it may not open that many files.
  Status arm(std::span<const BufferDescriptor> buffers);

  /// Kills it and waits until it has ended. Calling it again does nothing.
  Status end();

 private:
  Keeper(pid_t pid, UniqueFd process, UniqueFd socket);

  pid_t pid_ = 0;
  std::uint64_t start_time_ = 0;
  UniqueFd process_;  ///< pidfd; none after end()
  UniqueFd socket_;
  bool armed_ = false;
};

/// Copies of all descriptors that an armed keeper holds, for each member in the order of arm(). The
/// keeper keeps its own. kNotFound if there is no such process, it is no keeper, or it was never
/// armed.
Result<gpu::MemberDescriptors> take_from(const journal::ProcessId& keeper);

/// Kills a keeper, which may be any process's child, and waits until it has ended. Success if it
/// has ended already, or the process is not a keeper.
Status end_keeper(const journal::ProcessId& keeper);

}  // namespace gcr::keeper

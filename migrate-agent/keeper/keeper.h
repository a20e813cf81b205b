// A keeper holds the descriptors of a process's VRAM while the process itself has let go of it, so
// that the memory outlives the worker which moves it. It is a tiny process (gcr-keeper) with a
// session of its own that never touches CUDA: the driver keeps the memory behind a descriptor as
// long as anybody holds it. There is no protocol: whoever knows the keeper's ProcessId and may
// ptrace it takes copies of its descriptors with pidfd_getfd.
//
// Methods block for milliseconds; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "proto/journal.pb.h"
#include "src/base/limits.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::keeper {

/// A descriptor that belongs to somebody else.
struct BufferDescriptor {
  std::uint64_t id = 0;
  int fd = -1;
};

/// Owned descriptors by buffer id; what mover and door pass around.
using Descriptors = std::vector<std::pair<std::uint64_t, UniqueFd>>;

/// The keeper of one migration, a child of this process. Move-only. While it is not armed it ends
/// with this process, whatever ends that. Destroying an unarmed one ends it; an armed one stays.
class Keeper {
 public:
  /// Starts `program` and waits until it is ready to be armed. It inherits nothing but its socket.
  static Result<Keeper> start(const std::filesystem::path& program);

  Keeper(Keeper&& other) noexcept;
  Keeper& operator=(Keeper&& other) noexcept;
  ~Keeper();

  /// For the journal, before it is armed.
  journal::ProcessId id() const;

  /// Hands copies of the descriptors over; at most kMaxBuffers, once. On success the keeper holds
  /// all of them until it is ended. On failure it is not armed and useless: end it.
  /// kResourceExhausted if it may not open that many files.
  Status arm(std::span<const BufferDescriptor> buffers);

  /// Kills it and waits until it is gone. Idempotent.
  Status end();

 private:
  Keeper(pid_t pid, UniqueFd process, UniqueFd socket);

  pid_t pid_ = 0;
  std::uint64_t start_time_ = 0;
  UniqueFd process_;  ///< pidfd; none once it was ended
  UniqueFd socket_;
  bool armed_ = false;
};

/// Copies of all that an armed keeper holds, in the order in which it was armed. The keeper keeps
/// its own. kNotFound if there is no such process, it is no keeper, or it was never armed.
Result<Descriptors> take_from(const journal::ProcessId& keeper);

/// Kills a keeper that may be anybody's child, and waits until it has ended. Success if it has
/// already, or never was a keeper.
Status end_keeper(const journal::ProcessId& keeper);

}  // namespace gcr::keeper

// How the checkpoint functions, called in one process, reach this library in another.
//
// Once initialised, a process has, for each vendor's GPUs that it uses, a socketpair, a thread that
// waits at one end of it, and a sealed memfd named "softgpu" that contains the descriptor number of
// the other end. A process that may ptrace it takes that end with pidfd_getfd: no path, no port,
// the same across mount, PID and network namespaces, and CRIU restores all of it. One packet is one
// request or one reply; callers take turns by a lock on the memfd.
//
// The serving thread owns the process's checkpoint state. Between requests it waits in recvmsg. It
// completes each request, even if the caller dies meanwhile.
#pragma once

#include <array>
#include <cstdint>

#include "src/base/unique_fd.h"
#include "tests/softgpu/engine/device.h"

namespace gcr::softgpu {

struct Process;

inline constexpr char kDoorName[] = "softgpu";
inline constexpr std::uint64_t kDoorMagic = 0x31525544'55504753;
inline constexpr std::uint32_t kDoorVersion = 1;

/// The memfd's whole content.
struct DoorCard {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t caller_fd;  ///< in the descriptor table of the owner
  std::int32_t pid;        ///< the owner, in its own PID namespace
  Vendor vendor;
};

/// With CUDA's numbers.
enum class ProcessState : std::int32_t { kRunning = 0, kLocked = 1, kCheckpointed = 2 };

enum class DoorOp : std::uint32_t { kInvalid, kState, kLock, kCheckpoint, kRestore, kUnlock };

/// A device of the machine that a process is restored on; its directory is sent by SCM_RIGHTS.
struct DoorDevice {
  Uuid uuid;
  std::uint64_t total_bytes;
  std::uint32_t mounted;
  std::uint32_t reserved;
};
struct DoorPair {
  Uuid from;
  Uuid to;
};

struct DoorRequest {
  std::uint32_t version;
  DoorOp op;
  std::uint32_t timeout_ms;    ///< kLock; 0: none
  std::uint32_t device_count;  ///< kRestore
  std::uint32_t pair_count;    ///< kRestore
  std::uint32_t sequence;      ///< random; the reply repeats it
  std::array<DoorDevice, kMaxDevices> devices;
  std::array<DoorPair, kMaxDevices> pairs;
};

struct DoorReply {
  Result result;
  ProcessState state;
  std::int32_t thread;     ///< the serving thread, in the target's own PID namespace
  std::uint32_t sequence;  ///< of the request: killed callers leave replies behind
};

/// The owner's side.
class Door {
 public:
  explicit Door(Process* process) : process_(process) {}

  /// Makes the card and starts the serving thread.
  Result open();
  /// In a forked child, which has no serving thread: closes the inherited descriptors.
  void forget();

 private:
  void serve();
  Result handle(const DoorRequest& request, std::array<UniqueFd, kMaxDevices>& directories);
  Result lock(std::uint32_t timeout_ms);
  Result checkpoint();
  Result restore(const DoorRequest& request, std::array<UniqueFd, kMaxDevices>& directories);
  Result unlock();

  Process* process_;
  UniqueFd card_;
  UniqueFd own_end_;
  UniqueFd caller_end_;
  ProcessState state_ = ProcessState::kRunning;
};

/// The caller's side: sends one request to the process `pid` (in the caller's PID namespace), about
/// its GPUs of the machine's vendor, and waits for the reply. Restore sends the machine. Fails with
/// Result::kInvalidValue for a missing process, with Result::kNotInitialized for one that uses no
/// such software GPU.
Result ask_door(const DeviceTable& machine, int pid, const DoorRequest& request, DoorReply* reply);

}  // namespace gcr::softgpu

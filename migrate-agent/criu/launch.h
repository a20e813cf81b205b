// Starting CRIU in a child process: what the agent (after a fork), the reaper and gcr-in-criu.so
// share.
//
// Everything here may run in the forked child of a process with many threads: system calls only, no
// memory from the heap, no locks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/address_range.h"

namespace gcr::criu::launch {

/// Where CRIU and the reaper find their descriptors.
inline constexpr int kRpcFd = 3;     ///< CRIU: its end of the RPC; the reaper: the control socket
inline constexpr int kImagesFd = 4;  ///< the images directory, in which CRIU works
/// Where gcr-in-criu.so finds its own, of which only the first is always there.
inline constexpr int kLibraryFd = 5;  ///< itself
inline constexpr int kMountsFd = 6;   ///< the mount namespace to enter
inline constexpr int kControlFd = 7;  ///< the control socket, where there is a namespace to enter
inline constexpr int kMemoryFd = 8;   ///< a SOCK_SEQPACKET, see MemoryMessage
inline constexpr int kHoldFd = 9;     ///< a SOCK_SEQPACKET: a byte each way before a restore ends

/// A directory in the images directory that stays empty: CRIU must load no plugins.
inline constexpr char kNoPlugins[] = "no-plugins";

/// What a control message says. Zero is never used.
enum class Event : std::uint32_t {
  kInvalid = 0,
  kRpcSocket = 1,   ///< with the agent's end of the RPC as a descriptor
  kFailed = 2,      ///< `value` is an errno, `step` says where
  kCriuExited = 3,  ///< `value` is a wait status
  kStarted = 4,     ///< `value` is the PID of CRIU as the agent sees it
  kReleased = 5,    ///< to the reaper: it no longer ends when the control socket closes
  kEntered = 6,     ///< gcr-in-criu.so is in the mount namespace
  kMayGoOn = 7,     ///< to gcr-in-criu.so: the view of its namespace was checked
};

enum class Step : std::uint32_t {
  kNone = 0,
  kDescriptors,
  kEnterNamespaces,
  kFork,
  kMountsPrivate,
  kMountProc,
  kFirstPid,
  kJoinGroup,
  kSocketpair,
  kExecReaper,
  kExecCriu,
};

/// One packet of the control socket, a SOCK_SEQPACKET pair between the agent and what it starts.
struct ControlMessage {
  Event event;
  Step step;
  std::int32_t value;
  std::uint32_t reserved;
};
static_assert(sizeof(ControlMessage) == 16);

/// What gcr-in-criu.so sends on kMemoryFd, about a process by its PID as CRIU sees it. With `count`
/// 0 it asks which memory the agent sends by itself, and the answer is packets of kRangesPerPacket
/// ranges, the last of which has fewer, or none. Else as many ranges follow that a scan has left
/// out. All ranges are ascending.
struct MemoryMessage {
  std::int32_t pid;
  std::uint32_t count;
};
inline constexpr std::size_t kRangesPerPacket = 2048;

/// Descriptors that CRIU gets for gcr-in-criu.so; -1 is none. Without `library`, nothing of it is
/// in force.
struct Inside {
  int library = -1;
  int mounts = -1;
  int memory = -1;
  int hold = -1;
};

/// Sends one message, with a descriptor if `fd` is not -1. Errors are ignored: nobody could
/// receive them.
void send_control(int control_fd, const ControlMessage& message, int fd);

/// send_control(kFailed) with errno, then _exit(127).
[[noreturn]] void fail_and_exit(int control_fd, Step step);

/// Moves the two descriptors to kRpcFd and kImagesFd. False with errno set on failure.
bool arrange_descriptors(int third_fd, int images_fd);

/// Puts those of gcr-in-criu.so into their places. False with errno set on failure.
bool arrange_inside(const Inside& inside);

/// Sets all signals to their default action, none blocked.
void reset_signals();

/// Becomes CRIU: makes the RPC's socketpair here (CRIU asks it for its peer's PID, which must exist
/// in CRIU's own PID namespace), sends the agent's end over `control_fd`, and executes `argv` in
/// the images directory with standard output and error going to criu.err there. With
/// `inside.mounts`, CRIU gets to the images directory by entering that namespace.
[[noreturn]] void exec_criu(const char* const* argv, int control_fd, int images_fd,
                            const Inside& inside);

}  // namespace gcr::criu::launch

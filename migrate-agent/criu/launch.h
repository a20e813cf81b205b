// Starting CRIU in a child process: what the agent (after a fork), the reaper and gcr-enter.so
// share.
//
// Everything here may run in the forked child of a process with many threads: system calls only, no
// memory from the heap, no locks.
#pragma once

#include <cstdint>

namespace gcr::criu::launch {

/// Where CRIU and the reaper find their descriptors.
inline constexpr int kRpcFd = 3;     ///< CRIU: its end of the RPC; the reaper: the control socket
inline constexpr int kImagesFd = 4;  ///< the images directory, in which CRIU works
/// Where gcr-enter.so finds its own.
inline constexpr int kControlFd = 5;  ///< the control socket
inline constexpr int kEnterFd = 6;    ///< itself
inline constexpr int kMountsFd = 7;   ///< the mount namespace to enter

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
  kEntered = 6,     ///< gcr-enter.so is in the mount namespace
  kMayGoOn = 7,     ///< to gcr-enter.so: the view of its namespace was checked
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

/// Sends one message, with a descriptor if `fd` is not -1. Errors are ignored: nobody could
/// receive them.
void send_control(int control_fd, const ControlMessage& message, int fd);

/// send_control(kFailed) with errno, then _exit(127).
[[noreturn]] void fail_and_exit(int control_fd, Step step);

/// Moves the two descriptors to kRpcFd and kImagesFd. False with errno set on failure.
bool arrange_descriptors(int third_fd, int images_fd);

/// Sets all signals to their default action, none blocked.
void reset_signals();

/// Becomes CRIU: makes the RPC's socketpair here (CRIU asks it for its peer's PID, which must exist
/// in CRIU's own PID namespace), sends the agent's end over `control_fd`, and executes `argv` in
/// the images directory with standard output and error going to criu.err there. With descriptors of
/// gcr-enter.so and of a mount namespace, CRIU gets to the images directory by entering that.
[[noreturn]] void exec_criu(const char* const* argv, int control_fd, int images_fd,
                            int enter_fd = -1, int mounts_fd = -1);

}  // namespace gcr::criu::launch

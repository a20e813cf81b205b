// Starting CRIU in a child process: what the agent (after a fork) and the reaper share.
//
// Everything here may run in the forked child of a process with many threads: system calls only, no
// memory from the heap, no locks.
#pragma once

#include <cstdint>

namespace gcr::criu::launch {

/// Where CRIU and the reaper find their descriptors.
inline constexpr int kRpcFd = 3;     ///< CRIU: its end of the RPC; the reaper: the control socket
inline constexpr int kImagesFd = 4;  ///< the images directory
inline constexpr int kNoPluginsFd = 5;  ///< an empty directory: CRIU must load no plugins

/// What a control message says. Zero is never used.
enum class Event : std::uint32_t {
  kInvalid = 0,
  kRpcSocket = 1,   ///< brings the agent's end of the RPC as a descriptor
  kFailed = 2,      ///< `value` is an errno, `step` says where
  kCriuExited = 3,  ///< `value` is a wait status
  kStarted = 4,     ///< `value` is the PID of CRIU as the agent sees it
  kReleased = 5,    ///< to the reaper: the restored process belongs to nobody from here on
};

enum class Step : std::uint32_t {
  kNone = 0,
  kDescriptors,
  kEnterNamespaces,
  kFork,
  kMountsPrivate,
  kMountProc,
  kForeignProc,
  kFirstPid,
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

/// Sends one message, with a descriptor if `fd` is not -1. Errors are ignored: nobody is left to
/// hear of them.
void send_control(int control_fd, const ControlMessage& message, int fd);

/// send_control(kFailed) with errno, then _exit(127).
[[noreturn]] void fail_and_exit(int control_fd, Step step);

/// Puts the three descriptors to 3, 4 and 5 (5 stays closed if `no_plugins_fd` is -1) and closes
/// all others from 6 on. False with errno set on failure.
bool arrange_descriptors(int third_fd, int images_fd, int no_plugins_fd);

/// All signals to their default action, none blocked.
void reset_signals();

/// Becomes CRIU: makes the RPC's socketpair here (CRIU asks it for its peer's PID, which must exist
/// in CRIU's own PID namespace), sends the agent's end over `control_fd`, and executes `argv` with
/// standard output and error going to criu.err in the images directory.
[[noreturn]] void exec_criu(const char* const* argv, int control_fd, int images_fd,
                            int no_plugins_fd);

}  // namespace gcr::criu::launch

// Starting CRIU in a child process: what the agent (after a fork), the reaper and gcr-in-criu.so
// share. It may run in the forked child of a process with many threads: system calls only, no
// memory from the heap, no locks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/address_ranges.h"

namespace gcr::criu::launch {

/// Where CRIU and the reaper find their descriptors.
inline constexpr int kRpcFd = 3;     ///< CRIU: its end of the RPC; the reaper: the control socket
inline constexpr int kImagesFd = 4;  ///< the images directory, in which CRIU works
/// Where gcr-in-criu.so finds its own, of which only the first is always there.
inline constexpr int kLibraryFd = 5;  ///< itself
inline constexpr int kMountsFd = 6;   ///< the mount namespace to enter
inline constexpr int kControlFd = 7;  ///< the control socket, where there is a namespace to enter
inline constexpr int kMemoryFd = 8;   ///< a SOCK_SEQPACKET, see MemoryMessage
inline constexpr int kHoldFd = 9;     ///< a SOCK_SEQPACKET, see HoldMessage
inline constexpr int kPluginFd = 10;  ///< a file, which kPluginLink leads to
/// Where the reaper finds the directory for the exit status of the root task, if there is one.
inline constexpr int kStatusFd = 11;
/// Where CRIU finds the standard streams that the tasks get in a container, as far as they get any.
inline constexpr int kFirstStreamFd = 12;
inline constexpr int kStreams = 3;
/// Where CRIU finds the directory above that of the control group that it freezes, in a container.
inline constexpr int kGroupFd = kFirstStreamFd + kStreams;

/// Directories in the images directory: one that stays empty, for a CRIU that loads no plugin; and
/// one with a link to kPluginFd. gcr-in-criu.so loads the plugin by that name while it is in the
/// agent's mount namespace, and closes the descriptor: CRIU then gets what is loaded, or nothing.
inline constexpr char kNoPlugins[] = "no-plugins";
inline constexpr char kPluginDirectory[] = "plugin";
inline constexpr char kPluginLink[] = "plugin/plugin.so";

/// What a control message says. Zero is never used.
enum class Event : std::uint32_t {
  kInvalid = 0,
  kRpcSocket = 1,   ///< with the agent's end of the RPC as a descriptor
  kFailed = 2,      ///< `value` is an errno, `step` says where
  kCriuExited = 3,  ///< `value` is a wait status
  kStarted = 4,     ///< `value` is the PID of CRIU as the agent sees it
  kReleased = 5,    ///< to the reaper: it no longer ends when the control socket closes; `value`
                    ///< is the PID of the root task as the reaper sees it
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
  kMountRemovedFiles,
  kFirstPid,
  kJoinGroup,
  kSocketpair,
  kExecReaper,
  kExecCriu,
  kLoadPlugin,
  kKeyring,
};

/// One packet of the control socket, a SOCK_SEQPACKET pair between the agent and what it starts.
struct ControlMessage {
  Event event = Event::kInvalid;
  Step step = Step::kNone;
  std::int32_t value = 0;
};

/// What gcr-in-criu.so sends on kMemoryFd, about a process by its PID as CRIU sees it. With `count`
/// 0 it asks which memory the agent sends by itself, and the answer is packets of kRangesPerPacket
/// ranges, the last of which has fewer, or none; then the same of SharedMemoryId, of the whole job.
/// Else as many ranges follow that a scan has left out. All ranges are ascending.
struct MemoryMessage {
  std::int32_t pid;
  std::uint32_t count;
};
inline constexpr std::size_t kRangesPerPacket = 2048;

/// Memory that processes share.
struct SharedMemoryId {
  std::uint64_t device;
  std::uint64_t inode;
};
static_assert(sizeof(SharedMemoryId) == sizeof(AddressRange));

/// A restoring CRIU waits for the agent when it reads its first image, and when all restored
/// threads are in their last stop. Zero is never used.
enum class Hold : std::uint32_t {
  kInvalid = 0,
  kWaiting = 1,      ///< from CRIU: it waits; `pid` is its own, as it sees it
  kGoOn = 2,         ///< to CRIU, without an answer; all others are answered by the same message
  kReserve = 3,      ///< `bytes` of addresses without access; the answer has `address`
  kOpen = 4,         ///< makes reserved memory readable and writable
  kDrop = 5,         ///< opened memory is zeros again
  kRemove = 6,       ///< gives addresses back
  kTake = 7,         ///< a mapping of a task to be is in place
  kMakeHuge = 8,     ///< as kOpen, and fills it with huge pages; they are zeros
  kMakeShared = 9,   ///< `bytes` of memory to be shared, opened; the answer has `address`
  kTakeShared = 10,  ///< such memory, all of it, is one that CRIU would make for the tasks
};

/// What goes over kHoldFd. A task inherits all memory of CRIU. CRIU maps a task's private mappings
/// one behind the other into one region first, and moves them from there. With kTake the mapping at
/// `offset` of the region of task `pid` is not mapped, but moved there from `address`. With
/// kTakeShared the tasks map the memory at `address` in place of that with `number` in the images.
struct HoldMessage {
  Hold what = Hold::kInvalid;
  std::int32_t pid = 0;             ///< in an answer, 0 or an errno
  std::uint64_t address = 0;        ///< in CRIU
  std::uint64_t bytes = 0;          ///< of all that is reserved, opened, dropped, removed or taken
  std::uint64_t region_bytes = 0;   ///< kTake
  std::uint64_t region_offset = 0;  ///< kTake
  std::uint64_t region_base = 0;    ///< kTake: where the region should begin, modulo kHugePageBytes
  std::uint64_t number = 0;         ///< kTakeShared
};
static_assert(sizeof(HoldMessage) == 56);
inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{1} << 21;

/// A file in the images directory, by the agent: the rights with which gcr-in-criu.so uses names in
/// the place of each task. For each a MemberRights, and behind it its groups, 32 bits each.
inline constexpr char kMemberRights[] = "member-rights";
struct MemberRights {
  std::int32_t pid;         ///< in its own PID namespace
  std::uint32_t uid;        ///< for files
  std::uint32_t gid;        ///< the same
  std::uint32_t groups;     ///< how many follow
  std::uint64_t effective;  ///< capabilities
};
static_assert(sizeof(MemberRights) == 24);

/// Where CRIU makes files again that had been removed: a tmpfs of the reaper's mount namespace, in
/// which root alone finds anything.
inline constexpr char kRemovedFiles[] = "/run/gcr-removed";
/// The same in a container: of its own mount namespace.
inline constexpr char kRemovedInContainer[] = "/dev/.gcr/removed";

/// Descriptors that CRIU gets for gcr-in-criu.so, and the reaper its own; -1 is none. Without
/// `library`, nothing of gcr-in-criu.so is in force.
struct Inside {
  int library = -1;
  int mounts = -1;
  int memory = -1;
  int hold = -1;
  int plugin = -1;
  int status = -1;  ///< the reaper's
  int streams[kStreams] = {-1, -1, -1};
  int group = -1;
};

/// Sends one message, with a descriptor if `fd` is not -1. Ignores errors: the receiver is gone.
void send_control(int control_fd, const ControlMessage& message, int fd = -1);

/// send_control(kFailed) with errno, then _exit(127).
[[noreturn]] void fail_and_exit(int control_fd, Step step);

/// Makes all open descriptors but the standard ones end at exec, and puts these into their places:
/// kRpcFd, kImagesFd and those of `inside`. False with errno set on failure.
bool arrange_descriptors(int third_fd, int images_fd, const Inside& inside);

/// Sets all signals to their default action, none blocked.
void reset_signals();

/// Makes the kernel count on from this PID in the caller's PID namespace, so that CRIU's own
/// processes take no PID that the restored process needs. False with errno set on failure.
bool number_after(const char* pid);

/// Becomes CRIU: makes the RPC's socketpair here (CRIU asks it for its peer's PID, which must exist
/// in CRIU's own PID namespace), sends the agent's end over `control_fd`, and executes `argv` in
/// the images directory with standard output and error going to criu.err there. `variables`: its
/// environment, in addition to what every CRIU has, kMostVariables at most. With `inside.mounts`,
/// CRIU gets to the images directory by entering that namespace.
[[noreturn]] void exec_criu(const char* const* argv, const char* const* variables, int control_fd,
                            int images_fd, const Inside& inside);
inline constexpr std::size_t kMostVariables = 32;

}  // namespace gcr::criu::launch

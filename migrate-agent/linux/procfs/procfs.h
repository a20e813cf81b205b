// Reads facts from /proc and opens pidfds. Only send_signal() affects a process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// Opens a pidfd. kNotFound if there is no such process.
Result<UniqueFd> open_pidfd(pid_t pid);

/// Opens a pidfd of a child that no other thread reaps; none, with errno set, if there is no such
/// process.
UniqueFd pidfd_of_child(pid_t pid);

/// Sends a signal; false with errno set on failure. (glibc 2.36 declares its own wrappers without C
/// linkage.)
bool send_signal(int pidfd, int signal_number);

/// Opens `path` with O_PATH: no effect on devices, no wait for the other end of a FIFO. Use this
/// first for names that come from a process. None, with errno set, if there is no such file.
UniqueFd hold(const std::string& path);

/// A descriptor of the agent's /proc. Paths below it ("self/fd/3") also work in a thread that has
/// entered another mount namespace, where "/proc" is another directory. Lives as long as the
/// process; the first call must not come from such a thread.
int own_proc();

/// Returns the content of a file below own_proc(), as read_text() does.
std::string read_own_proc(const std::string& path);

/// Opens a held file for reading if it is a regular file. None, with errno set, if it is of another
/// kind (EINVAL) or cannot be opened.
UniqueFd open_regular(const UniqueFd& held);

/// Returns the content of a file; empty if it cannot be read to its end, for example because the
/// process has ended meanwhile.
std::string read_text(const std::string& path);

/// Returns the numbers after "NSpid:" in /proc/`task`/status, outermost namespace first; `task` is
/// "123" or "123/task/124". Empty if the task is gone.
std::vector<pid_t> namespace_pids(const std::string& task);

/// Fields of /proc/`task`/stat (proc(5)).
struct Stat {
  char state = '\0';
  pid_t parent = 0;
  int terminal = 0;              ///< device of the controlling terminal; 0: none
  unsigned long flags = 0;       ///< PF_… of the kernel
  std::uint64_t cpu_ticks = 0;   ///< CPU time of all its threads
  std::uint64_t start_time = 0;  ///< clock ticks after boot; distinguishes a reused PID
  std::uint64_t resident_pages = 0;
};

/// Reads the fields; none if the task is gone.
std::optional<Stat> read_stat(const std::string& task);
std::optional<Stat> read_stat(pid_t pid);

std::uint64_t resident_bytes(const Stat& stat);

/// Returns the process's real user; 0 if it is gone.
uid_t owner_of(pid_t pid);

/// Returns the rest of the line "`name`:" of /proc/`task`/status, without leading blanks; empty if
/// there is none.
std::string status_field(const std::string& task, const std::string& name);

/// Returns the same of /proc/`pid`/fdinfo/`number`.
std::string descriptor_field(pid_t pid, int number, const std::string& name);

/// Returns every line "Name:" of /proc/`task`/status, without leading blanks. Empty if the task is
/// gone.
std::map<std::string, std::string> status_fields(const std::string& task);

/// Returns a field of `status`, or of /proc/`task`/status, that is a set of bits in hexadecimal,
/// such as capabilities or signals; 0 if there is none.
std::uint64_t status_bits(const std::string& task, const std::string& name);
std::uint64_t bits_in(const std::map<std::string, std::string>& status, const std::string& name);

/// Returns the id in the innermost PID namespace ("NSpid:") from `status`; 0 if there is none.
pid_t innermost_pid(const std::map<std::string, std::string>& status);

/// Returns the state letter; 0 if the task is gone.
char state(const std::string& task);

/// Returns whether the process shares its parent's memory, as a child of vfork(2) and
/// posix_spawn(3) does until it executes a program or ends. Needs the right to ptrace both.
bool is_in_vfork(pid_t pid);

/// Returns whether the process has ended: at most a zombie is left, with nothing but its exit
/// status.
bool has_ended(const Stat& stat);
bool has_ended(pid_t pid);

/// Returns whether the process has begun to exit or has ended: its memory is gone or is being
/// freed.
bool is_exiting(const Stat& stat);

/// Returns the thread ids of a process in the caller's namespace. Empty if it is gone.
std::vector<pid_t> threads(pid_t pid);

/// A descriptor of a process and the target of its link in /proc: "/etc/hosts", "socket:[17]".
struct DescriptorLink {
  int number;
  std::string link;
};

/// Returns the descriptors of a process, except those that are closed meanwhile. Empty if it is
/// gone.
std::vector<DescriptorLink> descriptor_links(pid_t pid);

/// Returns whether the process maps a file whose name begins with `name`, such as "libcuda.so".
bool has_library(pid_t pid, std::string_view name);

/// Device through which processes compute on AMD GPUs; the kernel's driver for it is KFD.
inline constexpr char kComputeDevice[] = "/dev/kfd";

/// Returns whether the process has kComputeDevice, or another file of that name, open.
bool uses_kfd(pid_t pid);

/// Returns every process in the caller's /proc.
std::vector<pid_t> processes();

/// Returns `pid` and all its descendants, parents first.
std::vector<pid_t> tree(pid_t pid);

/// Returns the tree of `pid` if all its threads are stopped. Where the kernel lists children, which
/// is reliable only for stopped threads, this does not read every process of the host.
std::vector<pid_t> stopped_tree(pid_t pid);

/// Returns stopped_tree() by the PIDs that the processes have in their own PID namespaces.
std::map<pid_t, pid_t> stopped_tree_in_namespace(pid_t pid);

/// Returns the identity of a namespace ("pid", "mnt", ...), a link text like "pid:[4026531836]".
/// Empty if the process is gone.
std::string namespace_link(pid_t pid, const std::string& kind);

/// Link text of the initial PID namespace (PROC_PID_INIT_INO of the kernel).
inline constexpr char kFirstPidNamespace[] = "pid:[4026531836]";

/// Returns the process that has number `inner` in the PID namespace whose init is `init`; both are
/// PIDs of the caller's /proc, the result too. kNotFound if there is none.
Result<pid_t> find_in_namespace(pid_t init, pid_t inner);

/// Waits until every thread of `pid` is stopped. kNotFound if the process is gone, kTimeout after
/// 10 s. There is no event for this: it polls every millisecond.
Status wait_until_stopped(pid_t pid);

}  // namespace gcr::procfs

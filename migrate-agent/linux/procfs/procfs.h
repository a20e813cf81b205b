// Reads single facts from /proc, and opens pidfds. Nothing here changes a process.
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

/// A pidfd. kNotFound if there is no such process.
Result<UniqueFd> open_pidfd(pid_t pid);

/// A pidfd of a child that nobody else reaps; none, with errno set, if there is no such process.
UniqueFd pidfd_of_child(pid_t pid);

/// False with errno set on failure. (glibc 2.36 declares its own wrappers without C linkage.)
bool send_signal(int pidfd, int signal_number);

/// Holds the file `path` without opening it: no effect on devices, and no wait for a FIFO's other
/// end. Use this first for names that come from a process. None, with errno set, if there is no
/// such file.
UniqueFd hold(const std::string& path);

/// Opens a held file for reading, if it is a regular file. None, with errno set, if it is another
/// kind (EINVAL) or cannot be opened.
UniqueFd open_regular(const UniqueFd& held);

/// The content of a file; empty if it cannot be read to its end, for example because the process
/// has ended meanwhile.
std::string read_text(const std::string& path);

/// The numbers after "NSpid:" in /proc/`task`/status, outermost namespace first; `task` is "123" or
/// "123/task/124". Empty if it is gone.
std::vector<pid_t> namespace_pids(const std::string& task);

/// What /proc/`task`/stat says (proc(5)).
struct Stat {
  char state = '\0';
  pid_t parent = 0;
  int terminal = 0;              ///< the controlling one's device; 0: none
  unsigned long flags = 0;       ///< PF_… of the kernel
  std::uint64_t cpu_ticks = 0;   ///< that all its threads have used
  std::uint64_t start_time = 0;  ///< clock ticks after boot: tells a reused PID apart
  std::uint64_t resident_pages = 0;
};

/// None if it is gone.
std::optional<Stat> read_stat(const std::string& task);
std::optional<Stat> read_stat(pid_t pid);

std::uint64_t resident_bytes(const Stat& stat);

/// Its real user; 0 if it is gone.
uid_t owner_of(pid_t pid);

/// The rest of the line "`name`:" of /proc/`task`/status, without the blanks before it; empty if
/// there is none.
std::string status_field(const std::string& task, const std::string& name);

/// The same as a set of bits in hexadecimal, such as capabilities or signals; 0 if there is none.
std::uint64_t status_bits(const std::string& task, const std::string& name);

/// Every line "Name:" of /proc/`task`/status, without the blanks after it. Empty if it is gone.
std::map<std::string, std::string> status_fields(const std::string& task);

/// Of such lines: one as a set of bits in hexadecimal; 0 if there is none.
std::uint64_t bits_in(const std::map<std::string, std::string>& status, const std::string& name);

/// Of such lines: the id in the innermost PID namespace ("NSpid:"); 0 if there is none.
pid_t innermost_pid(const std::map<std::string, std::string>& status);

/// The state letter, 0 if it is gone.
char state(const std::string& task);

/// Whether it has its parent's memory, as a child of vfork(2) and posix_spawn(3) has until it
/// executes a program or ends. Needs the right to ptrace both.
bool is_in_vfork(pid_t pid);

/// A zombie at most is left of it: it runs no more, and has nothing but its exit status.
bool has_ended(const Stat& stat);
bool has_ended(pid_t pid);

/// It has begun to exit, or has ended: its memory is gone, and the rest follows.
bool is_exiting(const Stat& stat);

/// Thread ids of a process as the caller's namespace sees them. Empty if it is gone.
std::vector<pid_t> threads(pid_t pid);

/// A descriptor of a process, and where its link in /proc leads: "/etc/hosts", "socket:[17]".
struct DescriptorLink {
  int number;
  std::string link;
};

/// Those of a process, without the ones that are closed meanwhile. Empty if it is gone.
std::vector<DescriptorLink> descriptor_links(pid_t pid);

/// Whether a file is mapped in the process whose name begins with `name`, such as "libcuda.so".
bool has_library(pid_t pid, std::string_view name);

/// By which processes compute on GPUs of AMD's; the kernel's driver for that is KFD.
inline constexpr char kComputeDevice[] = "/dev/kfd";

/// Whether it has that device open, or something of that name.
bool uses_kfd(pid_t pid);

/// Every process in the caller's /proc.
std::vector<pid_t> processes();

/// `pid` and everything below it, parents first.
std::vector<pid_t> tree(pid_t pid);

/// The same where all threads are stopped: without a look at every process of the host, where the
/// kernel lists children, which it does rightly for stopped threads.
std::vector<pid_t> stopped_tree(pid_t pid);

/// stopped_tree() by the PIDs that the processes have in their own PID namespaces.
std::map<pid_t, pid_t> stopped_tree_in_namespace(pid_t pid);

/// Identity of a namespace ("pid", "mnt", ...), as a link text like "pid:[4026531836]". Empty if
/// gone.
std::string namespace_link(pid_t pid, const std::string& kind);

/// The kernel's name for the first PID namespace (PROC_PID_INIT_INO).
inline constexpr char kFirstPidNamespace[] = "pid:[4026531836]";

/// The process that has number `inner` in the PID namespace whose init is `init`; both in the
/// caller's /proc. kNotFound if there is none.
Result<pid_t> find_in_namespace(pid_t init, pid_t inner);

/// Waits until every thread of `pid` is stopped (or the process is gone: kNotFound; or ten seconds
/// have passed: kTimeout). There is no event for this: the kernel is asked every millisecond.
Status wait_until_stopped(pid_t pid);

}  // namespace gcr::procfs

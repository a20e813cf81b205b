// gcr-in-criu.so: what CRIU does otherwise than by itself. The agent executes CRIU with this object
// preloaded, and each part is in force where its descriptor is (launch.h). Other programs that run
// with this object (a shell that starts CRIU) are not affected.
//
// 1. It enters the mount namespace of the process that it dumps, or of the container that it
//    restores a process into. The agent executes CRIU in its own mount namespace, so that CRIU's
//    file, its loader and its libraries are the agent's. Once they are mapped, and before main(),
//    CRIU enters the namespace that the agent holds, and waits until the agent has checked what it
//    sees there.
// 2. A dump leaves out the memory that the agent sends by itself (in_criu_left_out.cc). The agent
//    says what that is when CRIU, which has stopped all tasks, is about to look at a task's
//    mappings. In shared memory that the agent sends, CRIU finds only a hole.
// 3. A restore waits for the agent, and does what it asks for (Hold): when CRIU reads its first
//    image, so that the agent can put memory of the tasks to be into CRIU; and when every restored
//    thread is in its last stop and none has run: CRIU then sends SIGSTOP to the first of them, and
//    lets go of all.
// 4. A restored task takes over the memory that it has inherited from CRIU, where CRIU would map
//    empty memory for it. Where CRIU makes memory for tasks to share, it gets that of the agent's.
// 5. CRIU's plugin is loaded, with all libraries that it needs, before 1: CRIU finds it loaded.
// 6. A restored task uses names with the rights of the member that it becomes (in_criu_names.cc).
// 7. CRIU waits for many threads without looking at all of them each time (in_criu_stops.cc).
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "migrate-agent/criu/launch/in_criu.h"
#include "migrate-agent/criu/launch/launch.h"

// CRIU exports its functions, for its plugins.
extern "C" __attribute__((weak)) int cr_dump_tasks(int pid);

namespace {

using namespace gcr::criu::launch;
using gcr::criu::Growing;
using gcr::criu::receive;
using gcr::pagemap::ScanArguments;
namespace pagemap = gcr::pagemap;

// Whether CRIU was started with the descriptor; it may give a free number to a file of its own.
bool leaves_out = false;  ///< kMemoryFd
bool holds = false;       ///< kHoldFd, until the tasks are let go of
struct stat first_file;   ///< a FIFO in the place of the first image, until it is read

bool has(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/// With all functions that it needs, so that a plugin for another CRIU shows here.
void load_plugin() {
  if (fchdir(kImagesFd) == 0 && dlopen(kPluginLink, RTLD_NOW) != nullptr) {
    close(kPluginFd);
    return;
  }
  const char* const reason = dlerror();
  dprintf(STDERR_FILENO, "cannot load the plugin: %s\n",
          reason != nullptr ? reason : "no directory");
  errno = ELIBBAD;
  fail_and_exit(kControlFd, Step::kLoadPlugin);
}

void enter() {
  gcr::criu::names::keep_kernel_features();
  if (setns(kMountsFd, CLONE_NEWNS) != 0 || fchdir(kImagesFd) != 0) {
    fail_and_exit(kControlFd, Step::kEnterNamespaces);
  }
  // CRIU looks for programs in the images directory, and finds none.
  if (setenv("PATH", "", 1) != 0) fail_and_exit(kControlFd, Step::kEnterNamespaces);
  send_control(kControlFd, {Event::kEntered});
  ControlMessage answer{};
  if (receive(kControlFd, &answer, sizeof(answer)) != sizeof(answer) ||
      answer.event != Event::kMayGoOn) {
    _exit(127);
  }
  close(kControlFd);
  close(kMountsFd);
}

__attribute__((constructor)) void begin() {
  if (cr_dump_tasks == nullptr) return;
  if (unsetenv("LD_PRELOAD") != 0) fail_and_exit(kControlFd, Step::kEnterNamespaces);
  leaves_out = has(kMemoryFd);
  holds = has(kHoldFd);
  if (has(kPluginFd)) load_plugin();
  if (has(kMountsFd)) enter();  // after it the images directory is the working directory
  if (!holds || stat("inventory.img", &first_file) != 0) first_file.st_ino = 0;
  close(kLibraryFd);
}

Growing<HoldMessage> takes;  ///< ascending by task and offset
pid_t region_of = 0;         ///< the task whose region was mapped, at
std::uint64_t region = 0;
Growing<HoldMessage> shared_takes;
int made_memory = -1;  ///< the last memory without a name that was made, to be filled

void* real_mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

/// The kernel's setting does not matter, nor is the mapping marked in any way.
bool make_huge(char* address, std::size_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
  for (std::size_t at = 0; at < bytes; at += kHugePageBytes) {
    static_cast<volatile char*>(address)[at] = 0;
  }
  return madvise(address, bytes, kCollapse) == 0;
}

/// Where huge pages can be mapped as they are; none of it counts before it is used. MAP_FAILED.
void* make_shared(std::size_t bytes) {
  auto* const room =
      static_cast<char*>(real_mmap(nullptr, bytes + kHugePageBytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (room == MAP_FAILED) return room;
  const std::uint64_t over = reinterpret_cast<std::uint64_t>(room) % kHugePageBytes;
  return real_mmap(room + (over == 0 ? 0 : kHugePageBytes - over), bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/// An errno, or 0.
int serve(HoldMessage& request) {
  auto* const address = reinterpret_cast<void*>(request.address);
  switch (request.what) {
    case Hold::kReserve: {
      void* const reserved =
          real_mmap(nullptr, request.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      request.address = reinterpret_cast<std::uint64_t>(reserved);
      return reserved == MAP_FAILED ? errno : 0;
    }
    case Hold::kOpen:
      return mprotect(address, request.bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
    case Hold::kMakeHuge: {
      const bool opened = mprotect(address, request.bytes, PROT_READ | PROT_WRITE) == 0;
      return opened && make_huge(static_cast<char*>(address), request.bytes) ? 0 : errno;
    }
    case Hold::kDrop:
      return madvise(address, request.bytes, MADV_DONTNEED) == 0 ? 0 : errno;
    case Hold::kRemove:
      return munmap(address, request.bytes) == 0 ? 0 : errno;
    case Hold::kTake:
      return takes.add(request) ? 0 : ENOMEM;
    case Hold::kMakeShared: {
      void* const made = make_shared(request.bytes);
      request.address = reinterpret_cast<std::uint64_t>(made);
      return made == MAP_FAILED ? errno : 0;
    }
    case Hold::kTakeShared:
      return shared_takes.add(request) ? 0 : ENOMEM;
    default:
      return EINVAL;
  }
}

/// Does what the agent asks for, until CRIU may go on. False if there is no agent any more.
bool wait_for_agent() {
  HoldMessage message{};
  message.what = Hold::kWaiting;
  message.pid = getpid();
  while (send(kHoldFd, &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message) &&
         receive(kHoldFd, &message, sizeof(message)) == sizeof(message)) {
    if (message.what == Hold::kGoOn) return true;
    message.pid = serve(message);
  }
  return false;
}

/// The agent's namespace ends CRIU if the agent does not want it to go on.
void wait_at_last_stop() {
  while (!wait_for_agent()) pause();
  holds = false;
  close(kHoldFd);
}

/// Maps the region so that page tables and huge pages can move as they are.
void* map_region(const HoldMessage& take, int flags) {
  const std::uint64_t bytes = take.region_bytes;
  auto* const room =
      static_cast<char*>(real_mmap(nullptr, bytes + kHugePageBytes, PROT_NONE, flags, -1, 0));
  if (room == MAP_FAILED) return room;
  const auto first = reinterpret_cast<std::uint64_t>(room);
  const std::uint64_t before = (take.region_base - first) % kHugePageBytes;
  if (before != 0) munmap(room, before);
  munmap(room + before + bytes, kHugePageBytes - before);
  region_of = take.pid;
  region = first + before;
  return room + before;
}

/// In place of an mmap by CRIU; nullptr if CRIU's own call is to be made.
void* take_over(void* address, std::size_t bytes, int protection, int flags) {
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  const bool is_region = address == nullptr && protection == PROT_NONE && flags == kPrivate;
  if (!is_region && flags != (kPrivate | MAP_FIXED)) return nullptr;
  const pid_t self = getpid();
  for (const HoldMessage& take : takes) {
    if (take.pid != self) continue;
    if (is_region && region_of != self && bytes == take.region_bytes) {
      return map_region(take, flags);
    }
    if (is_region || region_of != self || bytes != take.bytes ||
        reinterpret_cast<std::uint64_t>(address) != region + take.region_offset) {
      continue;
    }
    auto* const from = reinterpret_cast<void*>(take.address);
    if (mprotect(from, bytes, protection) != 0) return nullptr;
    void* const moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address);
    return moved == MAP_FAILED ? nullptr : moved;
  }
  return nullptr;
}

/// CRIU, in a task, has made memory for tasks to share, and is about to fill it from this image: it
/// becomes the agent's, which the task has inherited. The agent sees it if CRIU's own stays.
void take_over_shared(const char* image) {
  constexpr char kImage[] = "pagemap-shmem-";
  if (made_memory < 0 || strncmp(image, kImage, sizeof(kImage) - 1) != 0) return;
  const std::uint64_t number = strtoull(image + sizeof(kImage) - 1, nullptr, 10);
  for (const HoldMessage& take : shared_takes) {
    if (take.number != number) continue;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", take.address,
             take.address + take.bytes);
    const long file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    dup2(static_cast<int>(file), made_memory);
    close(static_cast<int>(file));
  }
}

}  // namespace

EXPORTED int memfd_create(const char* name, unsigned flags) noexcept {
  return made_memory = static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

EXPORTED off64_t lseek64(int fd, off64_t offset, int whence) noexcept {
  if (whence == SEEK_DATA && leaves_out && gcr::criu::is_sent_by_agent(fd)) {
    errno = ENXIO;
    return -1;
  }
  return syscall(SYS_lseek, fd, offset, whence);
}

EXPORTED off_t lseek(int fd, off_t offset, int whence) noexcept {
  return lseek64(fd, offset, whence);
}

EXPORTED int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  const bool divided = request == pagemap::kScan && leaves_out && gcr::criu::agent_sends(fd);
  long result = syscall(SYS_ioctl, fd, request, argument);
  if (divided && result > 0) {
    result = gcr::criu::leave_out(*static_cast<const ScanArguments*>(argument), result);
  }
  return static_cast<int>(result);
}

EXPORTED ssize_t pread64(int fd, void* buffer, std::size_t size, off64_t offset) {
  const bool divided = leaves_out && gcr::criu::agent_sends(fd);
  const ssize_t got = syscall(SYS_pread64, fd, buffer, size, offset);
  if (divided && got > 0) {
    auto* const entries = static_cast<std::uint64_t*>(buffer);
    gcr::criu::leave_out(entries, static_cast<std::size_t>(got) / sizeof(*entries),
                         static_cast<std::uint64_t>(offset) / sizeof(*entries));
  }
  return got;
}

EXPORTED int openat64(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = gcr::criu::names::mode_in(rest, flags);
  va_end(rest);
  if (leaves_out && strcmp(path, "smaps") == 0)
    gcr::criu::is_asked_about(gcr::criu::owner_of(directory));
  if (shared_takes.size() != 0) take_over_shared(path);
  return gcr::criu::names::open_at(directory, path, flags, mode);
}

EXPORTED int kill(pid_t pid, int signal_number) noexcept {
  // What CRIU forks to probe the kernel stops itself.
  if (signal_number == SIGSTOP && pid != getpid() && holds) wait_at_last_stop();
  return static_cast<int>(syscall(SYS_kill, pid, signal_number));
}

EXPORTED ssize_t read(int fd, void* buffer, std::size_t size) {
  struct stat file;
  if (first_file.st_ino != 0 && fstat(fd, &file) == 0 && file.st_ino == first_file.st_ino &&
      file.st_dev == first_file.st_dev) {
    first_file.st_ino = 0;
    wait_for_agent();
    gcr::criu::names::restrict_to_members();
  }
  return syscall(SYS_read, fd, buffer, size);
}

EXPORTED void* mmap64(void* address, std::size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  void* const taken = takes.size() == 0 ? nullptr : take_over(address, bytes, protection, flags);
  return taken != nullptr ? taken : real_mmap(address, bytes, protection, flags, fd, offset);
}

EXPORTED void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                    off_t offset) noexcept {
  return mmap64(address, bytes, protection, flags, fd, offset);
}

// A process to inspect: executes its arguments in their order, closes descriptor 3 when it is
// ready, and waits to be killed.
//
//   map FILE        maps a file, read-only
//   open FILE       opens a file for reading
//   write FILE      opens a file for writing
//   pipe            a pipe with both ends here
//   pair            a Unix socket pair with both ends here
//   listen          a listening TCP socket
//   connect         a TCP connection to itself, not accepted
//   accept          a TCP connection to itself, accepted
//   tls             a TCP connection to itself, accepted, with TLS in the kernel
//   io_uring        an io_uring
//   sysv            attached System V shared memory
//   delete FILE     unlinks a file
//   link FILE FILE  gives a file another name
//   child           a child process
//   root DIR        changes its root directory
//   hide DIR        mounts an empty file system there, visible only to itself
//   cover FILE WITH mounts another file over a file, visible only to itself
//   share FILE      maps a file, shared and writable
//   memfd           maps a memfd, shared
//   fill FILE       maps a file that it writes 65 MiB to
//   secret          maps secret memory
//   pidfd PID       a pidfd
//   bpf             a BPF map
//   queue           a POSIX message queue
//   multipath       an MPTCP socket
//   fifo FILE       opens a named pipe
//   bind            gives a mapping a NUMA policy
//   seal            seals a mapping
//   cpu             runs only on the first CPU that it may run on
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/mempolicy.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

namespace {

constexpr int kReadyFd = 3;

void must(bool done) {
  if (!done) std::exit(1);
}

void map_file(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  must(fd >= 0 && ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
  ::close(fd);
}

int listen_somewhere(sockaddr_in& address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  must(::bind(socket, generic, size) == 0 && ::listen(socket, 1) == 0 &&
       ::getsockname(socket, generic, &size) == 0);
  return socket;
}

/// Returns the listener.
int connect_to_self() {
  sockaddr_in address{};
  const int listener = listen_somewhere(address);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  must(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return listener;
}

void make_io_uring() {
  io_uring_params parameters{};
  must(::syscall(SYS_io_uring_setup, 4, &parameters) >= 0);
}

void attach_shared_memory() {
  const int id = ::shmget(IPC_PRIVATE, 4096, 0600);
  must(id >= 0 && ::shmat(id, nullptr, 0) != reinterpret_cast<void*>(-1));
  ::shmctl(id, IPC_RMID, nullptr);
}

void map_shared(int fd, std::size_t bytes) {
  must(fd >= 0);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  must(at != MAP_FAILED);
  ::close(fd);
}

void share(const char* path) {
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  must(fd >= 0);
  map_shared(fd, 4096);
}

void make_memfd() {
  const int fd = ::memfd_create("held", MFD_CLOEXEC);
  must(::ftruncate(fd, 4096) == 0);
  map_shared(fd, 4096);
}

void fill(const char* path) {
  constexpr std::size_t kBytes = 65 << 20;
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  must(fd >= 0 && ::posix_fallocate(fd, 0, kBytes) == 0);
  must(::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
  ::close(fd);
}

void map_secret() {
  const int fd = static_cast<int>(::syscall(SYS_memfd_secret, 0));
  must(fd >= 0 && ::ftruncate(fd, 4096) == 0);
  map_shared(fd, 4096);
}

void make_bpf_map() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = 4;
  attributes.value_size = 8;
  attributes.max_entries = 1;
  must(::syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof(attributes)) >= 0);
}

void hide(const char* directory) {
  must(::unshare(CLONE_NEWNS) == 0 &&
       ::mount("", "/", nullptr, MS_PRIVATE | MS_REC, nullptr) == 0 &&
       ::mount("tmpfs", directory, "tmpfs", 0, nullptr) == 0);
}

void cover(const char* file, const char* with) {
  must(::unshare(CLONE_NEWNS) == 0 &&
       ::mount("", "/", nullptr, MS_PRIVATE | MS_REC, nullptr) == 0 &&
       ::mount(with, file, nullptr, MS_BIND, nullptr) == 0);
}

char* map_page() {
  void* const page =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(page != MAP_FAILED);
  return static_cast<char*>(page);
}

void bind_page() {
  const unsigned long nodes = 1;
  must(::syscall(SYS_mbind, map_page(), 4096, MPOL_BIND, &nodes, 8 * sizeof(nodes), 0) == 0);
}

void seal_page() {
  constexpr long kMseal = 462;
  must(::syscall(kMseal, map_page(), 4096, 0) == 0);
}

void run_on_one_cpu() {
  cpu_set_t set;
  must(::sched_getaffinity(0, sizeof(set), &set) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  must(::sched_setaffinity(0, sizeof(set), &set) == 0);
}

void make_child() {
  if (::fork() != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(kReadyFd);
  ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  int at = 1;
  const auto next = [&] { return at < argc ? argv[at++] : static_cast<char*>(nullptr); };
  int pair[2];
  sockaddr_in address{};
  const std::map<std::string, std::function<void()>> actions = {
      {"map", [&] { map_file(next()); }},
      {"open", [&] { must(::open(next(), O_RDONLY) >= 0); }},
      {"write", [&] { must(::open(next(), O_WRONLY) >= 0); }},
      {"pipe", [&] { must(::pipe(pair) == 0); }},
      {"pair", [&] { must(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0); }},
      {"listen", [&] { listen_somewhere(address); }},
      {"connect", [] { connect_to_self(); }},
      {"tls",
       [] {
         const int socket = ::accept(connect_to_self(), nullptr, nullptr);
         must(::setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", 3) == 0);
       }},
      {"accept", [] { must(::accept(connect_to_self(), nullptr, nullptr) >= 0); }},
      {"io_uring", make_io_uring},
      {"sysv", attach_shared_memory},
      {"delete", [&] { must(::unlink(next()) == 0); }},
      {"link",
       [&] {
         const char* from = next();
         must(::link(from, next()) == 0);
       }},
      {"child", make_child},
      {"root", [&] { must(::chroot(next()) == 0); }},
      {"hide", [&] { hide(next()); }},
      {"cover",
       [&] {
         const char* file = next();
         cover(file, next());
       }},
      {"share", [&] { share(next()); }},
      {"memfd", make_memfd},
      {"fill", [&] { fill(next()); }},
      {"secret", map_secret},
      {"pidfd", [&] { must(::syscall(SYS_pidfd_open, std::atoi(next()), 0) >= 0); }},
      {"bpf", make_bpf_map},
      {"queue",
       [&] {
         const std::string name = "/gcr-held-" + std::to_string(::getpid());
         must(::mq_open(name.c_str(), O_RDWR | O_CREAT, 0600, nullptr) >= 0);
         ::mq_unlink(name.c_str());
       }},
      {"multipath", [&] { must(::socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP) >= 0); }},
      {"fifo", [&] { must(::open(next(), O_RDWR) >= 0); }},
      {"bind", bind_page},
      {"seal", seal_page},
      {"cpu", run_on_one_cpu},
  };
  while (const char* word = next()) {
    const auto action = actions.find(word);
    must(action != actions.end());
    action->second();
  }
  ::close(kReadyFd);
  for (;;) ::pause();
}

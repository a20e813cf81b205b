// A process that is inspected: does what its arguments say, in their order, then says so by closing
// descriptor 3, and waits to be killed.
//
//   map FILE        maps a file, read-only
//   open FILE       opens a file for reading
//   write FILE      opens a file for writing
//   pipe            a pipe with both ends here
//   pair            a Unix socket pair with both ends here
//   listen          a listening TCP socket
//   connect         a TCP connection to itself
//   io_uring        an io_uring
//   sysv            attached System V shared memory
//   delete FILE     unlinks a file
//   link FILE FILE  gives a file another name
//   child           a child process
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/ipc.h>
#include <sys/mman.h>
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

void connect_to_self() {
  sockaddr_in address{};
  listen_somewhere(address);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  must(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
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
      {"connect", connect_to_self},
      {"io_uring", make_io_uring},
      {"sysv", attach_shared_memory},
      {"delete", [&] { must(::unlink(next()) == 0); }},
      {"link",
       [&] {
         const char* from = next();
         must(::link(from, next()) == 0);
       }},
      {"child", make_child},
  };
  while (const char* word = next()) {
    const auto action = actions.find(word);
    must(action != actions.end());
    action->second();
  }
  ::close(kReadyFd);
  for (;;) ::pause();
}

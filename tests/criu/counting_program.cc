// The program that the CRIU tests dump and restore.
//
// Usage: counting_program FILE MODE, where MODE is
//   count  several threads count; each appends "<thread> <number>" to FILE, one write per line, so
//          that a lost or repeated step shows as a gap or a repeat
//   ghost  as count, through a file that it has deleted, as well as to FILE
//   socket as count, with a pipe, and listens on a Unix socket, FILE.socket, that its group may use
//   wait   a thread for every kind of blocking call, which must not return; each that does appends
//          "returned <call> <errno>"; one thread counts
//   leave  as count, and enters a new mount namespace when it gets SIGUSR1
//   remember  two processes count as 0 and 1 while timer signals arrive constantly; before each
//          line they check memory of several kinds that they filled, and append "lost <kind>" if it
//          differs
//   heap   as remember, with a heap in each that grows, shrinks, is split by mprotect, released and
//          written to, a little before each line; huge-heap uses huge pages, loose-heap memory that
//          is not accounted
//   shared as remember, with memory that both share, whose middle the child has unmapped, and
//          memory of each that no other process shares, which is mapped twice and partly
//          inaccessible; all of it is written to and released before each line
// The first line of FILE is "ready <tid of each thread>...".
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr long kStepNanoseconds = 1'000'000;
constexpr int kAnHour = 3600;

int output = -1;
int ghost = -1;  ///< a deleted file that holds a byte for every line

void count_in_ghost() {
  static std::mutex mutex;
  static off_t lines = 0;
  const std::lock_guard lock(mutex);
  struct stat status {};
  if (::fstat(ghost, &status) != 0 || status.st_nlink != 0 || status.st_size != lines) std::abort();
  if (::pwrite(ghost, "x", 1, lines++) != 1) std::abort();
}

void append(const std::string& line) {
  if (ghost >= 0) count_in_ghost();
  if (::write(output, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

void count(int thread, const std::function<void()>& wait) {
  for (unsigned number = 1;; ++number) {
    wait();
    append(std::to_string(thread) + " " + std::to_string(number) + "\n");
  }
}

void wait_in_nanosleep() {
  timespec left{0, kStepNanoseconds};
  while (::nanosleep(&left, &left) != 0) {
  }
}

void wait_in_poll() { ::poll(nullptr, 0, 1); }

void wait_in_condition() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  condition.wait_for(lock, std::chrono::nanoseconds(kStepNanoseconds));
}

void compute() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
  while (std::chrono::steady_clock::now() < end) {
  }
  wait_in_nanosleep();
}

using Body = std::function<void()>;

/// A byte circulates between two counting threads through a socket pair.
void count_on_socket(int thread, int socket) {
  char byte = 'x';
  if (thread == 4 && ::send(socket, &byte, 1, 0) != 1) std::abort();
  count(thread, [socket]() {
    char received = 0;
    if (::recv(socket, &received, 1, 0) != 1) std::abort();
    wait_in_nanosleep();
    if (::send(socket, &received, 1, 0) != 1) std::abort();
  });
}

std::vector<Body> counters() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) std::abort();
  return {
      [] { count(0, wait_in_nanosleep); },          [] { count(1, wait_in_poll); },
      [] { count(2, wait_in_condition); },          [] { count(3, compute); },
      [end = pair[0]] { count_on_socket(4, end); }, [end = pair[1]] { count_on_socket(5, end); }};
}

Body waiter(const char* name, std::function<long()> call) {
  return [name, call = std::move(call)] {
    const long result = call();
    append("returned " + std::string(name) + " " + std::strerror(result < 0 ? errno : 0) + "\n");
    ::pause();
  };
}

long futex_wait(const timespec* limit, int operation) {
  static int word = 0;
  return ::syscall(SYS_futex, &word, operation, 0, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}

std::vector<Body> waiters() {
  static int sockets[2];
  static int pipes[2];
  static const timespec hour{kAnHour, 0};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0 || ::pipe(pipes) != 0) std::abort();
  return {
      [] { count(0, wait_in_nanosleep); },
      waiter("nanosleep", [] { return ::nanosleep(&hour, nullptr); }),
      waiter("poll", [] { return ::poll(nullptr, 0, kAnHour * 1000); }),
      waiter("select",
             [] {
               timeval limit{kAnHour, 0};
               return ::select(0, nullptr, nullptr, nullptr, &limit);
             }),
      waiter("futex", [] { return futex_wait(nullptr, FUTEX_WAIT_PRIVATE); }),
      waiter("futex with a limit", [] { return futex_wait(&hour, FUTEX_WAIT_PRIVATE); }),
      waiter("futex until",
             [] {
               timespec until{};
               ::clock_gettime(CLOCK_MONOTONIC, &until);
               until.tv_sec += kAnHour;
               return futex_wait(&until, FUTEX_WAIT_BITSET_PRIVATE);
             }),
      waiter("epoll_wait",
             [] {
               epoll_event event{};
               return ::epoll_wait(::epoll_create1(0), &event, 1, kAnHour * 1000);
             }),
      waiter("recv",
             [] {
               char byte = 0;
               return ::recv(sockets[0], &byte, 1, 0);
             }),
      waiter("read",
             [] {
               char byte = 0;
               return ::read(pipes[0], &byte, 1);
             }),
  };
}

/// Signals that the whole process waits for are blocked in every thread.
sigset_t block_user_signal() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// Pages with different contents; every third one is never written.
class Pages {
  static constexpr std::size_t kBytes = 4096;
  static constexpr unsigned kWords = kBytes / sizeof(unsigned);
  static constexpr unsigned kCount = 1024;

 public:
  static constexpr std::size_t kTaken = (kCount + 1) * kBytes;

  Pages(const char* kind, unsigned mark, int protection = PROT_READ | PROT_WRITE)
      : kind_(kind), mark_(mark) {
    // An inaccessible page keeps the kernel from merging it with its neighbour.
    void* const before = ::mmap(nullptr, kTaken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (before == MAP_FAILED) std::abort();
    void* const at = static_cast<char*>(before) + kBytes;
    if (::mprotect(at, kCount * kBytes, PROT_READ | PROT_WRITE) != 0) std::abort();
    words_ = static_cast<unsigned*>(at);
    for (unsigned page = 0; page < kCount; ++page) {
      if (page % 3 != 0) fill(page, mark);
    }
    if (::mprotect(at, kCount * kBytes, protection) != 0) std::abort();
  }

  void change(unsigned page, unsigned mark) {
    changed_page_ = page;
    changed_mark_ = mark;
    fill(page, mark);
  }

  void check_memory() const {
    for (unsigned page = 0; page < kCount; ++page) {
      const unsigned mark = page == changed_page_ ? changed_mark_ : page % 3 != 0 ? mark_ : 0;
      for (unsigned i = 0; i < kWords; i += kWords / 8) {
        if (words_[page * kWords + i] == (mark == 0 ? 0 : value(page, i, mark))) continue;
        append(std::string("lost ") + kind_ + "\n");
        return;
      }
    }
  }

 private:
  static unsigned value(unsigned page, unsigned i, unsigned mark) {
    return page * 2654435761u + i * 40503u + mark;
  }
  void fill(unsigned page, unsigned mark) {
    for (unsigned i = 0; i < kWords; ++i) words_[page * kWords + i] = value(page, i, mark);
  }

  const char* const kind_;
  const unsigned mark_;
  unsigned* words_ = nullptr;
  unsigned changed_page_ = kCount;
  unsigned changed_mark_ = 0;
};

/// Its frames are on the stack when the process resumes.
volatile sig_atomic_t ticks = 0;
void tick(int /*signal_number*/) { ticks = ticks + 1; }

/// Occupies the address of the parent's next mapping of this size, so that the child's lies
/// elsewhere.
void occupy_address_of_parents(std::size_t bytes) {
  if (::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
    std::abort();
  }
}

[[noreturn]] void remember() {
  ::signal(SIGALRM, tick);
  Pages before_fork("what was there before the fork", 1);
  const Pages read_only("what may only be read", 2, PROT_READ);
  append("ready " + std::to_string(::getpid()) + "\n");
  const int thread = ::fork() == 0 ? 1 : 0;
  if (thread == 1) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (thread == 1) before_fork.change(5, 77);
  if (thread == 1) occupy_address_of_parents(Pages::kTaken);
  const Pages own("its own", 3 + static_cast<unsigned>(thread));
  const itimerval often{{0, 1000}, {0, 1000}};
  if (::setitimer(ITIMER_REAL, &often, nullptr) != 0) std::abort();
  count(thread, [&] {
    for (const sig_atomic_t seen = ticks; ticks == seen;) ::pause();
    for (const Pages* pages : {&static_cast<const Pages&>(before_fork), &read_only, &own}) {
      pages->check_memory();
    }
  });
  std::abort();
}

/// 64 MiB, more or less. Every page has a mark, or is zeros.
class Heap {
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kPages = 16'384;
  static constexpr std::size_t kMore = 512;

 public:
  static constexpr std::size_t kTaken = kPages * kPage;

  Heap(bool huge, int flags) {
    at_ = static_cast<char*>(::mmap(nullptr, kTaken, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
    if (at_ == MAP_FAILED) std::abort();
    if (huge && ::madvise(at_, kTaken, MADV_HUGEPAGE) != 0) std::abort();
    marks_.resize(kPages);
    for (std::size_t page = 0; page < kPages; ++page) write(page);
  }

  /// The protection of some pages differs at each step. At every second one they are released.
  void step(unsigned number) {
    const bool empty = number % 2 == 0;
    const std::size_t divided = 1 + number * 131 % ((empty ? kPages / 2 : kPages) - kMore);
    protect(divided, PROT_READ);
    for (int i = 0; i < 8; ++i) write(next_random() % divided);
    release_pages(next_random() % (kPages / 2), 1 + next_random() % 300);
    protect(divided, PROT_READ | PROT_WRITE);
    if (number % 8 == 0) resize(marks_.size() + kMore);
    if (number % 8 == 5) resize(kPages);
    if (empty) release_pages(divided, kMore);
    if (number % 4 != 1) protect(divided, PROT_READ);
    divided_ = divided;
  }

  /// Parts that step() has split are joined again, which works only within one mapping.
  void check_memory() {
    protect(divided_, PROT_READ | PROT_WRITE);
    for (std::size_t page = 0; page < marks_.size(); ++page) {
      const unsigned* const words = reinterpret_cast<const unsigned*>(at_ + page * kPage);
      if (words[0] == marks_[page] && words[kPage / sizeof(unsigned) - 1] == marks_[page]) continue;
      append("lost page " + std::to_string(page) + " of the heap\n");
      return;
    }
  }

 private:
  unsigned next_random() { return random_ = random_ * 1'103'515'245 + 12'345; }

  void write(std::size_t page) {
    marks_[page] = ++mark_;
    unsigned* const words = reinterpret_cast<unsigned*>(at_ + page * kPage);
    for (std::size_t i = 0; i < kPage / sizeof(unsigned); ++i) words[i] = mark_;
  }
  void release_pages(std::size_t page, std::size_t count) {
    if (::madvise(at_ + page * kPage, count * kPage, MADV_DONTNEED) != 0) std::abort();
    for (std::size_t i = 0; i < count; ++i) marks_[page + i] = 0;
  }
  void protect(std::size_t page, int protection) {
    if (::mprotect(at_ + page * kPage, kMore * kPage, protection) != 0) std::abort();
  }
  void resize(std::size_t pages) {
    void* const at = ::mremap(at_, marks_.size() * kPage, pages * kPage, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) {
      append("the heap is not one mapping any more\n");
      std::abort();
    }
    at_ = static_cast<char*>(at);
    const std::size_t before = marks_.size();
    marks_.resize(pages);
    for (std::size_t page = before; page < pages; ++page) write(page);
  }

  char* at_ = nullptr;
  std::vector<unsigned> marks_;
  unsigned mark_ = 0;
  unsigned random_ = 1;
  std::size_t divided_ = 0;
};

[[noreturn]] void live_on_heap(bool huge, int flags) {
  append("ready " + std::to_string(::getpid()) + "\n");
  const int thread = ::fork() == 0 ? 1 : 0;
  if (thread == 1) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // So that the child's heap lies elsewhere than its parent's: memory of both is left to CRIU.
  if (thread == 1) occupy_address_of_parents(Heap::kTaken);
  Heap heap(huge, flags);
  unsigned number = 0;
  count(thread, [&] {
    heap.check_memory();
    heap.step(++number);
    wait_in_nanosleep();
  });
  std::abort();
}

/// 32 MiB of shared memory. One process writes every second page, from `first` on.
class Shared {
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kPages = 8192;
  static constexpr std::size_t kTaken = kPages * kPage;

 public:
  Shared() : marks_(kPages) {
    at_ = static_cast<char*>(
        ::mmap(nullptr, kTaken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (at_ == MAP_FAILED) std::abort();
  }

  /// Some of its pages are mapped twice, and others are inaccessible.
  void divide() {
    again_ = static_cast<char*>(::mremap(at_, 0, kTaken, MREMAP_MAYMOVE));
    if (again_ == MAP_FAILED || ::mprotect(at_, kTaken / 4, PROT_NONE) != 0) std::abort();
  }
  void unmap_middle() {
    if (::munmap(at_ + kTaken / 4, kTaken / 2) != 0) std::abort();
    unmapped_ = true;
  }

  void begin(std::size_t first) {
    first_ = first;
    for (std::size_t page = first_; page < kPages; page += 2) write(page);
  }
  void step(unsigned number) {
    for (unsigned i = 0; i < 16; ++i) write((number * 37 + i * 2) % (kPages / 2) * 2 + first_);
    const std::size_t gone = number * 97 % (kPages / 2) * 2 + first_;
    if (!is_mapped(gone)) return;
    if (::madvise(place(gone), kPage, MADV_REMOVE) != 0) std::abort();
    marks_[gone] = 0;
  }
  void check_memory() const {
    for (std::size_t page = first_; page < kPages; page += 2) {
      if (!is_mapped(page)) continue;
      const auto* const words = reinterpret_cast<const unsigned*>(place(page));
      if (words[0] == marks_[page] && words[kPage / sizeof(unsigned) - 1] == marks_[page]) continue;
      append("lost page " + std::to_string(page) + " of shared memory\n");
      return;
    }
  }

 private:
  bool is_mapped(std::size_t page) const {
    return !unmapped_ || page < kPages / 4 || page >= kPages / 4 * 3;
  }
  char* place(std::size_t page) const { return (again_ != nullptr ? again_ : at_) + page * kPage; }
  void write(std::size_t page) {
    if (!is_mapped(page)) return;
    marks_[page] = ++mark_;
    auto* const words = reinterpret_cast<unsigned*>(place(page));
    for (std::size_t i = 0; i < kPage / sizeof(unsigned); ++i) words[i] = mark_;
  }

  char* at_ = nullptr;
  char* again_ = nullptr;
  std::size_t first_ = 0;
  bool unmapped_ = false;
  std::vector<unsigned> marks_;
  unsigned mark_ = 0;
};

[[noreturn]] void share() {
  Shared together;
  append("ready " + std::to_string(::getpid()) + "\n");
  const int thread = ::fork() == 0 ? 1 : 0;
  if (thread == 1) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (thread == 1) together.unmap_middle();
  Shared alone;
  alone.divide();
  together.begin(static_cast<std::size_t>(thread));
  alone.begin(0);
  unsigned number = 0;
  count(thread, [&] {
    ++number;
    for (Shared* const memory : {&together, &alone}) {
      memory->check_memory();
      memory->step(number);
    }
    wait_in_nanosleep();
  });
  std::abort();
}

void leave_on_signal(const sigset_t& signals) {
  int received = 0;
  if (::sigwait(&signals, &received) != 0 || ::unshare(CLONE_NEWNS) != 0) std::abort();
}

bool listen_at(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof(address.sun_path)) return false;
  name.copy(address.sun_path, name.size());
  int ends[2];
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return ::pipe2(ends, O_CLOEXEC) == 0 &&
         ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
         ::chmod(name.c_str(), 0660) == 0 && ::listen(listener, 8) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  output = ::open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) return 2;
  if (std::strcmp(argv[2], "ghost") == 0) {
    const std::string path = std::string(argv[1]) + ".ghost";
    ghost = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (ghost < 0 || ::unlink(path.c_str()) != 0) return 2;
  }
  if (std::strcmp(argv[2], "socket") == 0 && !listen_at(std::string(argv[1]) + ".socket")) return 2;
  if (std::strcmp(argv[2], "remember") == 0) remember();
  if (std::strcmp(argv[2], "heap") == 0) live_on_heap(false, 0);
  if (std::strcmp(argv[2], "huge-heap") == 0) live_on_heap(true, 0);
  if (std::strcmp(argv[2], "loose-heap") == 0) live_on_heap(false, MAP_NORESERVE);
  if (std::strcmp(argv[2], "shared") == 0) share();
  const sigset_t signals = block_user_signal();
  std::mutex mutex;
  std::string tids;
  std::vector<std::thread> threads;
  for (const Body& body : std::strcmp(argv[2], "wait") == 0 ? waiters() : counters()) {
    std::unique_lock lock(mutex);
    std::condition_variable started;
    bool known = false;
    threads.emplace_back([&, body] {
      {
        std::unique_lock inner(mutex);
        tids += " " + std::to_string(::syscall(SYS_gettid));
        known = true;
        started.notify_one();
      }
      body();
    });
    started.wait(lock, [&] { return known; });
  }
  append("ready" + tids + "\n");
  if (std::strcmp(argv[2], "leave") == 0) leave_on_signal(signals);
  threads[0].join();
}

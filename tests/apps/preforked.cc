// preforked: a tree of processes, of which only the parent uses the GPU. It counts in VRAM, as
// counter does, and sends the numbers in turn to workers that it forked after CUDA had started.
// Each answers over its socket with a value computed from all its numbers, and counts them in a
// page that all share. An answer waits in its socket until its worker's next turn, so that there
// are always as many messages in flight as there are workers.
//
// One line for each number goes to standard output with one write: see preforked.h. Its content
// follows from the number alone, so that a lost, repeated or reordered message shows. An ended
// worker is reaped, gets a line that begins with "error:", and is skipped from then on. SIGTERM
// ends all; the status is 1 if there was an error.
#include "tests/apps/preforked.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/apps/pace.h"
#include "tests/apps/vram_counter.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr unsigned kMaxWorkers = 512;

struct Options {
  unsigned workers = 4;
  double period_ms = 4;
  std::uint64_t vram_bytes = 0;
  std::uint64_t piece_bytes = 64 * kMiB;
  int device = 0;
};

/// Shared by all processes: how many numbers each worker has received.
struct SharedPage {
  std::atomic<std::uint64_t> handled[kMaxWorkers];
};

bool receive_word(int socket, std::uint64_t* word) {
  ssize_t length = 0;
  do {
    length = ::recv(socket, word, sizeof(*word), MSG_WAITALL);
  } while (length < 0 && errno == EINTR);
  return length == sizeof(*word);
}

bool send_word(int socket, std::uint64_t word) {
  return ::send(socket, &word, sizeof(word), MSG_NOSIGNAL) == sizeof(word);
}

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail("write a line", "standard output does not take it");
  }
}

/// A worker, until the parent closes its end of the socket.
[[noreturn]] void work(int socket, std::atomic<std::uint64_t>& handled) {
  std::uint64_t answer = 0;
  for (std::uint64_t number = 0; receive_word(socket, &number);) {
    answer = preforked_answer(answer, number);
    handled.fetch_add(1);
    if (!send_word(socket, answer)) break;
  }
  ::_exit(0);
}

struct Worker {
  pid_t pid = -1;
  UniqueFd socket;           ///< none: it has ended
  std::uint64_t number = 0;  ///< whose answer has not been read; 0: none
};

class Workers {
 public:
  explicit Workers(std::size_t count);

  /// Sends the number to the worker whose turn it is, and prints its answer to the one before.
  void hand_out(std::uint64_t number);
  /// Prints the remaining answers, and ends all workers.
  void finish();

  bool any() const {
    return std::ranges::any_of(workers_, [](const Worker& worker) { return bool(worker.socket); });
  }
  bool good() const { return good_; }

 private:
  void start(std::size_t index);
  void collect(std::size_t index);
  void reap(std::size_t index);

  SharedPage* page_;
  std::vector<Worker> workers_;
  std::size_t turn_ = 0;
  bool finishing_ = false;
  bool good_ = true;
};

Workers::Workers(std::size_t count) : workers_(count) {
  void* page = ::mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) fail("share a page", std::strerror(errno));
  page_ = static_cast<SharedPage*>(page);
  for (std::size_t index = 0; index < count; ++index) start(index);
}

void Workers::start(std::size_t index) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("make a pair of sockets", std::strerror(errno));
  }
  UniqueFd parents(ends[0]), childs(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork", std::strerror(errno));
  if (pid == 0) {
    parents.reset();
    for (Worker& older : workers_) older.socket.reset();
    work(childs.get(), page_->handled[index]);
  }
  workers_[index] = {pid, std::move(parents), 0};
}

/// Prints the answer to the worker's current number, if it has one and answers.
void Workers::collect(std::size_t index) {
  Worker& worker = workers_[index];
  std::uint64_t answer = 0;
  if (worker.number == 0 || !receive_word(worker.socket.get(), &answer)) return;
  write_line(preforked_line(worker.number, index, answer, page_->handled[index].load()));
  worker.number = 0;
}

void Workers::hand_out(std::uint64_t number) {
  while (any()) {
    const std::size_t index = turn_;
    turn_ = (turn_ + 1) % workers_.size();
    Worker& worker = workers_[index];
    if (!worker.socket) continue;
    collect(index);
    if (worker.number == 0 && send_word(worker.socket.get(), number)) {
      worker.number = number;
      return;
    }
    reap(index);  // the next one gets the number
  }
}

/// Waits for a worker that has ended, or was told to end.
void Workers::reap(std::size_t index) {
  Worker& worker = workers_[index];
  int status = 0;
  while (::waitpid(worker.pid, &status, 0) < 0 && errno == EINTR) {
  }
  worker.socket.reset();
  if (finishing_ && status == 0 && worker.number == 0) return;
  std::string line = "error: worker " + std::to_string(index) + " ended ";
  line += WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status))
                              : "with status " + std::to_string(WEXITSTATUS(status));
  if (worker.number != 0) line += ", without an answer to " + std::to_string(worker.number);
  write_line(line);
  good_ = false;
}

void Workers::finish() {
  finishing_ = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const std::size_t index = (turn_ + i) % workers_.size();
    Worker& worker = workers_[index];
    if (!worker.socket) continue;
    collect(index);
    ::shutdown(worker.socket.get(), SHUT_RDWR);
    reap(index);
  }
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const VramCounter counter(gpu, 0);
  const Ballast ballast(gpu, options.vram_bytes, options.piece_bytes);
  Workers workers(options.workers);
  Pace pace(options.period_ms);
  bool good = true;
  while (!termination_requested() && workers.any()) {
    pace.begin_step();
    const auto [number, twin] = counter.next();
    if (number != twin) {
      write_line("error: " + std::to_string(number) + " and " + std::to_string(twin) + " in VRAM");
      good = false;
    }
    workers.hand_out(number);
    pace.end_step();
  }
  workers.finish();
  if (!ballast.intact()) {
    write_line("error: VRAM has changed");
    good = false;
  }
  return good && workers.good() ? 0 : 1;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Counts in VRAM and has forked workers answer for every number");
  line.add("--workers", options.workers, "processes to fork").within(1, gcr::apps::kMaxWorkers);
  line.add("--period-ms", options.period_ms, "the pace, if the GPU keeps it").within(0.0, 60000.0);
  line.add_size("--vram", options.vram_bytes, "more VRAM to hold, examined at the end");
  line.add_size("--piece", options.piece_bytes, "size of its buffers (default 64M)").positive();
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

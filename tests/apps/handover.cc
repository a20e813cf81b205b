// handover: a queue of VRAM between two processes, like torch.multiprocessing's. The giver fills a
// buffer by a kernel, records an event after it, and sends legacy IPC handles of both. The taker
// opens them only when a given number of later ones has arrived; it waits for the event on a
// stream, reads the whole buffer, closes both, and replies with the content. Then the giver frees
// the buffer. Buffers have various sizes, and every third is sent a second time, by the same
// handle.
//
// One line for each buffer goes to standard output: see handover.h. Its content follows from its
// number alone; a line that begins with "error:" reports a buffer with different words, or a handle
// that has changed since its first use. SIGTERM ends both processes; the status is 1 if there was
// an error.
#include "tests/apps/handover.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/apps/pace.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kSizes[] = {4096, 3 * kMiB, 100'000, 20 * kMiB, 64};

struct Options {
  std::uint64_t under_way = 5;
  double period_ms = 10;
  int device = 0;
};

struct Parcel {
  std::uint64_t number;
  std::uint64_t bytes;
  CUipcMemHandle memory;
  CUipcEventHandle event;
};

struct Answer {
  std::uint64_t number;
  std::uint64_t word;
  std::uint64_t differing;  ///< the number of different words
};

template <class Message>
bool send(int socket, const Message& message) {
  return ::send(socket, &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message);
}

/// False: the other end is closed.
template <class Message>
bool receive(int socket, Message* message) {
  ssize_t length = 0;
  do {
    length = ::recv(socket, message, sizeof(*message), 0);
  } while (length < 0 && errno == EINTR);
  return length == sizeof(*message);
}

CUstream make_stream(const Gpu& gpu) {
  CUstream stream = nullptr;
  gpu.check(gpu.driver().create_stream(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
  return stream;
}

class Taker {
 public:
  Taker(const Options& options, int socket)
      : gpu_(options.device), socket_(socket), under_way_(options.under_way) {}

  /// Until the giver closes its end.
  void run() {
    Parcel parcel;
    while (receive(socket_, &parcel)) {
      waiting_.push_back(parcel);
      if (waiting_.size() <= under_way_) continue;
      if (!send(socket_, open(waiting_.front()))) return;
      waiting_.pop_front();
    }
  }

 private:
  Answer open(const Parcel& parcel) {
    const Driver& driver = gpu_.driver();
    CUdeviceptr address = 0;
    CUevent event = nullptr;
    gpu_.check(driver.ipc_open(&address, parcel.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
               "open a handle of memory");
    gpu_.check(driver.open_event(&event, parcel.event), "open a handle of an event");
    words_.resize(parcel.bytes / 8);
    gpu_.check(driver.wait_event(stream_, event, 0), "wait for an event");
    gpu_.check(driver.copy_to_host_async(words_.data(), address, words_.size() * 8, stream_),
               "read VRAM");
    gpu_.check(driver.synchronize_stream(stream_), "synchronise");
    gpu_.check(driver.destroy_event(event), "close an event");
    gpu_.check(driver.ipc_close(address), "close memory");
    const auto same = std::ranges::count(words_, words_.front());
    return {parcel.number, words_.front(), words_.size() - static_cast<std::uint64_t>(same)};
  }

  const Gpu gpu_;
  const int socket_;
  const std::uint64_t under_way_;
  const CUstream stream_ = make_stream(gpu_);
  std::deque<Parcel> waiting_;
  std::vector<std::uint64_t> words_;
};

class Giver {
 public:
  Giver(const Options& options, int socket)
      : gpu_(options.device), socket_(socket), under_way_(options.under_way) {}

  ~Giver() {
    for (const Given& given : out_) gpu_.driver().destroy_event(given.event);
  }
  Giver(const Giver&) = delete;
  Giver& operator=(const Giver&) = delete;

  /// False: the taker has ended.
  bool step() {
    if (!give(is_sent_again(next_) ? out_.back().address : 0)) return false;
    return out_.size() <= under_way_ || take_back();
  }
  bool good() const { return good_; }

 private:
  struct Given {
    std::uint64_t number;
    CUdeviceptr address;
    CUevent event;
    Parcel parcel;
  };

  /// A new buffer or, at `address`, the last one once more, with a new event.
  bool give(CUdeviceptr address) {
    const Driver& driver = gpu_.driver();
    Given given{next_++, address, nullptr, {}};
    Parcel& parcel = given.parcel;
    parcel.number = given.number;
    parcel.bytes =
        address != 0 ? out_.back().parcel.bytes : kSizes[given.number % std::size(kSizes)];
    if (address == 0) {
      given.address = gpu_.allocate(parcel.bytes);
      gpu_.launch("gcr_fill", {given.address, parcel.bytes / 8, handover_word(given.number)},
                  parcel.bytes / 8, stream_);
    }
    gpu_.check(driver.create_event(&given.event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
               "create an event");
    gpu_.check(driver.record_event(given.event, stream_), "record an event");
    gpu_.check(driver.ipc_handle(&parcel.memory, given.address), "get a handle of memory");
    gpu_.check(driver.event_handle(&parcel.event, given.event), "get a handle of an event");
    if (address != 0 &&
        std::memcmp(&parcel.memory, &out_.back().parcel.memory, sizeof(parcel.memory)) != 0) {
      report("error: another handle of the same memory");
    }
    out_.push_back(given);
    return send(socket_, parcel);
  }

  bool take_back() {
    Answer answer;
    if (!receive(socket_, &answer)) return false;
    const Given oldest = out_.front();
    out_.pop_front();
    if (answer.differing != 0) {
      report("error: " + std::to_string(answer.differing) + " words differ in buffer " +
             std::to_string(answer.number));
    }
    write_line(handover_line(answer.number, answer.word));
    gpu_.check(gpu_.driver().destroy_event(oldest.event), "destroy an event");
    const bool last = out_.front().address != oldest.address;
    if (last) gpu_.check(gpu_.driver().free(oldest.address), "free VRAM");
    return true;
  }

  void report(const std::string& error) {
    write_line(error);
    good_ = false;
  }

  static void write_line(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      fail("write a line", "standard output does not take it");
    }
  }

  const Gpu gpu_;
  const int socket_;
  const std::uint64_t under_way_;
  const CUstream stream_ = make_stream(gpu_);
  std::deque<Given> out_;  ///< not yet answered by the taker
  std::uint64_t next_ = 0;
  bool good_ = true;
};

int run(const Options& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("make a pair of sockets", std::strerror(errno));
  }
  UniqueFd givers(ends[0]), takers(ends[1]);
  const pid_t taker = ::fork();  // before CUDA: each process has its own
  if (taker < 0) fail("fork", std::strerror(errno));
  if (taker == 0) {
    givers.reset();
    Taker(options, takers.get()).run();
    ::_exit(0);
  }
  takers.reset();
  catch_termination();
  Giver giver(options, givers.get());
  Pace pace(options.period_ms);
  bool good = true;
  while (good && !termination_requested()) {
    pace.begin_step();
    good = giver.step();
    pace.end_step();
  }
  if (!good) std::fprintf(stderr, "the taker is gone\n");
  givers.reset();
  int status = 0;
  while (::waitpid(taker, &status, 0) < 0 && errno == EINTR) {
  }
  return good && giver.good() && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Hands VRAM over to another process by legacy IPC");
  line.add("--under-way", options.under_way, "handles that are under way").within(1, 1000);
  line.add("--period-ms", options.period_ms, "the pace").within(0.0, 60000.0);
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

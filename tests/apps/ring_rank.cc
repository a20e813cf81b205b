#include "tests/apps/ring_rank.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/apps/ring_memory.h"
#include "tests/apps/vram_counter.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kThreads = 256;  // one block of Gpu::launch

/// All of it, or false.
template <class T>
bool read_whole(int file, T* value) {
  auto* at = reinterpret_cast<char*>(value);
  for (std::size_t left = sizeof(T); left > 0;) {
    const ssize_t length = ::read(file, at, left);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return false;
    at += length;
    left -= static_cast<std::size_t>(length);
  }
  return true;
}

template <class T>
bool write_whole(int file, const T& value) {
  ssize_t length = 0;
  do {
    length = ::write(file, &value, sizeof(T));
  } while (length < 0 && errno == EINTR);
  return length == sizeof(T);
}

/// The message to the right over a socket after every line.
struct Greeting {
  std::uint64_t step;
  std::uint64_t sum;
};

/// The sockets to both neighbours: Unix sockets, or TCP.
class Links {
 public:
  Links(const RingOptions& options, const RingPage& page) : left_(kRingLeft), right_(kRingRight) {
    if (!options.tcp) return;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(page.ports[(options.rank + 1) % options.ranks]);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    right_tcp_.reset(socket);
    if (::inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1 ||
        ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      fail("connect to the rank at the right", std::strerror(errno));
    }
    left_tcp_.reset(::accept4(kRingListener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!left_tcp_) fail("accept the rank at the left", std::strerror(errno));
    const int at_once = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    left_ = left_tcp_.get();
    right_ = socket;
  }

  bool greet(const Greeting& greeting) const { return write_whole(right_, greeting); }
  bool receive_sum(Greeting* greeting) const { return read_whole(left_, greeting); }

 private:
  UniqueFd left_tcp_, right_tcp_;
  int left_, right_;
};

class Rank {
 public:
  Rank(const RingOptions& options, RingPage* page)
      : options_(options),
        page_(page),
        gpu_(options.rank % static_cast<int>(options.gpus != 0 ? options.gpus : device_count())),
        ballast_(gpu_, options.vram_bytes, options.piece_bytes),
        state_(gpu_.allocate(kChunkBytes)),
        inbox_(make_box(gpu_, kind(), options.ranks * message_words() * 8)) {
    const RingState first{0, ring_first_token(options.rank), 0, 0};
    gpu_.check(gpu_.driver().copy_to_device(state_, &first, sizeof(first)), "write the state");
    gpu_.check(gpu_.driver().create_stream(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
    offer_box(gpu_, inbox_, kRingLeft);
    outbox_ = take_box(gpu_, kRingRight);
    links_.emplace(options, *page);
    if (options.graph) capture();
  }

  int run() {
    for (std::uint64_t target = 0; read_whole(kRingOrders, &target);) {
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::milli>(options_.rank * options_.skew_ms));
      launch(target);
      const RingState state = finish(target);
      if (!meets_expectations(state, target) || !exchange(state)) return 1;
      page_->passed[options_.rank][target / options_.per_line % (kRingAhead + 1)] = target;
      if (!write_whole(kRingReports, RingReport{target, state.sum, received_})) return 1;
    }
    return ballast_.intact() || complain("VRAM has changed") ? 0 : 1;
  }

 private:
  std::uint64_t message_words() const { return options_.words + kRingHeaderWords; }

  /// The requested kinds, in turn.
  RingMemory kind() const {
    std::vector<RingMemory> kinds{RingMemory::kVram};
    if (options_.host_memory) kinds.push_back(RingMemory::kHost);
    if (options_.legacy_ipc) kinds.push_back(RingMemory::kLegacyIpc);
    return kinds[options_.rank % kinds.size()];
  }

  void launch_step() {
    gpu_.launch("gcr_ring_pass",
                {state_, inbox_.address, outbox_.address, options_.ranks,
                 static_cast<std::uint64_t>(options_.rank), options_.words},
                kThreads, stream_);
  }

  void capture() {
    const Driver& driver = gpu_.driver();
    CUgraph graph = nullptr;
    gpu_.check(driver.begin_capture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
               "begin a capture");
    for (std::uint64_t i = 0; i < options_.per_line; ++i) launch_step();
    gpu_.check(driver.end_capture(stream_, &graph), "end the capture");
    gpu_.check(driver.instantiate(&graph_, graph, 0), "instantiate the graph");
  }

  /// All steps of a line, one after the other in the stream.
  void launch(std::uint64_t target) {
    if (graph_ != nullptr) {
      gpu_.check(gpu_.driver().launch_graph(graph_, stream_), "launch the graph");
      launched_ += options_.per_line;
    }
    for (; launched_ < target; ++launched_) launch_step();
  }

  RingState finish(std::uint64_t target) {
    const Driver& driver = gpu_.driver();
    gpu_.check(driver.synchronize_stream(stream_), "finish step " + std::to_string(target) +
                                                       " of rank " + std::to_string(options_.rank));
    RingState state{};
    gpu_.check(driver.copy_to_host(&state, state_, sizeof(state)), "read the state");
    return state;
  }

  /// Prints the line and returns false.
  bool complain(const std::string& what) const {
    const std::string line = "error: rank " + std::to_string(options_.rank) + ": " + what + "\n";
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("ring");
    return false;
  }

  bool meets_expectations(const RingState& state, std::uint64_t target) const {
    if (state.wrong != 0) {
      return complain(std::to_string(state.wrong) + " words are wrong by step " +
                      std::to_string(target));
    }
    if (state.step != target) {
      return complain("is at step " + std::to_string(state.step) + ", not " +
                      std::to_string(target));
    }
    if (inbox_.kind != RingMemory::kHost) return true;
    // The CPU sees the data that the last step received: the rank at the left overwrites it only
    // after this rank's next step.
    const auto* message = reinterpret_cast<const std::uint64_t*>(inbox_.address) +
                          target % options_.ranks * message_words();
    if (message[0] == target &&
        ring_token(message[1], static_cast<std::uint64_t>(options_.rank)) == state.token) {
      return true;
    }
    return complain("the CPU sees another message than the GPU at step " + std::to_string(target));
  }

  bool exchange(const RingState& state) {
    Greeting heard{};
    if (!links_->greet({state.step, state.sum}) || !links_->receive_sum(&heard)) {
      return complain("a neighbour is gone");
    }
    if (heard.step != state.step) {
      return complain("the rank at the left is at step " + std::to_string(heard.step) + ", not " +
                      std::to_string(state.step));
    }
    received_ = ring_sum(received_, heard.sum);
    return true;
  }

  const RingOptions& options_;
  RingPage* page_;
  const Gpu gpu_;
  const Ballast ballast_;
  CUdeviceptr state_;
  RingBox inbox_;
  RingBox outbox_;
  CUstream stream_ = nullptr;
  CUgraphExec graph_ = nullptr;
  std::optional<Links> links_;
  std::uint64_t launched_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace

int run_ring_rank(const RingOptions& options) {
  // Without its parent a rank could wait for its neighbours forever. Only the parent is told to
  // end.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  void* page = ::mmap(nullptr, sizeof(RingPage), PROT_READ | PROT_WRITE, MAP_SHARED, kRingPage, 0);
  if (page == MAP_FAILED) fail("map the shared page", std::strerror(errno));
  return Rank(options, static_cast<RingPage*>(page)).run();
}

}  // namespace gcr::apps

// ticker: proves by its output that exactly one copy of it runs and that no step is lost or
// repeated. Every step a kernel counts in VRAM and, a second time, in a variable of the module, and
// fills a slice of a ring of buffers with the step's number; then one line goes to standard output
// with one write: "<step> <number in VRAM> <number in the module> <checksum over the ring, hex>".
// Each line's content follows from its step alone: see tests/fault/oracle.h. SIGTERM ends it.
#include "tests/apps/ticker.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/apps/pace.h"
#include "tests/apps/vram_counter.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

struct Options {
  double period_ms = 50;
  std::uint64_t churn = 0;
  std::uint64_t spawn = 0;
  std::uint64_t contexts = 0;
  unsigned threads = 0;
  int device = 0;
};

/// Slices of the ring, one after the other over its buffers, each filled with the last step that
/// wrote it.
class TickerRing {
 public:
  explicit TickerRing(const Gpu& gpu) : gpu_(gpu), sum_(gpu.allocate(sizeof(std::uint64_t))) {
    for (CUdeviceptr& buffer : buffers_) {
      buffer = gpu.allocate(kChunkBytes);
      gpu.launch("gcr_fill", {buffer, kTickerBufferWords, 0}, kTickerBufferWords);
    }
  }

  void fill(std::uint64_t step) {
    const std::uint64_t slice = step % kTickerSlices;
    const CUdeviceptr buffer = buffers_[slice / kTickerSlicesPerBuffer];
    const std::uint64_t first = slice % kTickerSlicesPerBuffer * kTickerSliceWords;
    gpu_.launch("gcr_fill", {buffer + first * 8, kTickerSliceWords, step}, kTickerSliceWords);
  }

  std::uint64_t checksum() {
    gpu_.write_word(sum_, 0);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      gpu_.launch("gcr_stencil_checksum",
                  {buffers_[i], kTickerBufferWords, i * kTickerBufferWords, sum_},
                  kTickerBufferWords);
    }
    return gpu_.read_word(sum_);
  }

 private:
  const Gpu& gpu_;
  CUdeviceptr sum_;
  std::array<CUdeviceptr, kTickerBuffers> buffers_{};
};

/// A buffer that is freed and allocated again.
class Churned {
 public:
  explicit Churned(const Gpu& gpu) : gpu_(gpu), buffer_(gpu.allocate(kChunkBytes)) {}

  void replace() {
    gpu_.check(gpu_.driver().free(buffer_), "free a buffer");
    buffer_ = gpu_.allocate(kChunkBytes);
  }

 private:
  const Gpu& gpu_;
  CUdeviceptr buffer_;
};

/// Two contexts in addition to the first, whose waits block, each with a number in a buffer; the
/// second is destroyed and recreated.
class OwnContexts {
 public:
  explicit OwnContexts(const Gpu& gpu) : gpu_(gpu) {
    gpu_.check(gpu_.driver().current(&first_), "ask for the context");
    for (Own& own : own_) own = make();
  }

  void count() {
    for (Own& own : own_) {
      make_current(own.context);
      if (gpu_.read_word(own.buffer) != own.number) fail("count in a context", "VRAM has changed");
      gpu_.write_word(own.buffer, ++own.number);
    }
    make_current(first_);
  }
  void replace() {
    gpu_.check(gpu_.driver().destroy_context(own_[1].context), "destroy a context");
    own_[1] = make();
  }

 private:
  struct Own {
    CUcontext context = nullptr;
    CUdeviceptr buffer = 0;
    std::uint64_t number = 0;
  };

  Own make() const {
    Own own;
    gpu_.check(
        gpu_.driver().create_context(&own.context, CU_CTX_SCHED_BLOCKING_SYNC, gpu_.device()),
        "create a context");
    own.buffer = gpu_.allocate(5 * kMiB);
    gpu_.write_word(own.buffer, 0);
    make_current(first_);
    return own;
  }
  void make_current(CUcontext context) const {
    gpu_.check(gpu_.driver().set_current(context), "use a context");
  }

  const Gpu& gpu_;
  CUcontext first_ = nullptr;
  Own own_[2];
};

/// Starts a process and waits for it.
void spawn_a_child() {
  pid_t pid = -1;
  char name[] = "true";
  char* const words[] = {name, nullptr};
  char* const no_environment[] = {nullptr};
  if (::posix_spawn(&pid, "/bin/true", nullptr, nullptr, words, no_environment) != 0) {
    fail("start a process", "posix_spawn");
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/// Threads that wait: every other one with a time limit, which the kernel cannot continue with by
/// itself. They end with the program.
void start_idle_threads(unsigned count) {
  static std::mutex mutex;
  static std::condition_variable never;
  for (unsigned i = 0; i < count; ++i) {
    std::thread([i] {
      std::unique_lock lock(mutex);
      for (;;) {
        if (i % 2 == 0) {
          never.wait(lock);
        } else {
          never.wait_for(lock, std::chrono::hours(1));
        }
      }
    }).detach();
  }
}

void write_line(std::uint64_t step, std::uint64_t number, std::uint64_t twin, std::uint64_t sum) {
  char line[96];
  const int length =
      std::snprintf(line, sizeof(line), "%llu %llu %llu %016llx\n",
                    static_cast<unsigned long long>(step), static_cast<unsigned long long>(number),
                    static_cast<unsigned long long>(twin), static_cast<unsigned long long>(sum));
  if (::write(STDOUT_FILENO, line, static_cast<std::size_t>(length)) != length) {
    fail("write a line", "standard output does not take it");
  }
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const VramCounter counter(gpu, 0);
  TickerRing ring(gpu);
  std::optional<Churned> churned;
  if (options.churn != 0) churned.emplace(gpu);
  std::optional<OwnContexts> own_contexts;
  if (options.contexts != 0) own_contexts.emplace(gpu);
  start_idle_threads(options.threads);
  Pace pace(options.period_ms);
  for (std::uint64_t step = 1; !termination_requested(); ++step) {
    pace.begin_step();
    const auto [number, twin] = counter.next();
    ring.fill(step);
    const std::uint64_t sum = ring.checksum();
    if (churned && step % options.churn == 0) churned->replace();
    if (own_contexts) own_contexts->count();
    if (own_contexts && step % options.contexts == 0) own_contexts->replace();
    if (options.spawn != 0 && step % options.spawn == 0) spawn_a_child();
    write_line(step, number, twin, sum);
    pace.end_step();
  }
  return 0;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Counts in VRAM and prints a line that proves it at every step");
  line.add("--period-ms", options.period_ms, "the pace, if the GPU keeps it").within(0.0, 60000.0);
  line.add("--churn", options.churn, "replace a buffer every so many steps (0: never)");
  line.add("--spawn", options.spawn, "start a process every so many steps (0: never)");
  line.add("--contexts", options.contexts,
           "count in two more contexts, and make one anew every so many steps (0: none)");
  line.add("--threads", options.threads, "additional waiting threads");
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}

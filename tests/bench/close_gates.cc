// bench_gates: closes the gates of a job's processes repeatedly while it works, and prints how long
// that took. Root; the processes run under the preload library.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/support/command_line.h"

namespace gcr {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

struct Options {
  int root = 0;
  unsigned closings = 200;
  unsigned pause_ms = 50;
  unsigned timeout_ms = 10'000;
};

struct Measured {
  std::vector<double> closed_ms;
  unsigned failed = 0;
  unsigned stepped = 0;  ///< closings that had to let calls pass
};

Measured measure(const Options& options, gpu::Gates& gates) {
  Measured measured;
  bool stepped = false;
  gates.set_watch([&](const std::string&) { stepped = true; });
  for (unsigned i = 0; i < options.closings; ++i) {
    stepped = false;
    const auto begun = Clock::now();
    const Status closed = gates.quiesce(std::chrono::milliseconds(options.timeout_ms),
                                        std::chrono::milliseconds(2 * options.timeout_ms));
    const Milliseconds took = Clock::now() - begun;
    if (closed) {
      measured.closed_ms.push_back(took.count());
    } else {
      fmt::print("{}\n", closed.error().message());
      ++measured.failed;
    }
    measured.stepped += stepped ? 1 : 0;
    if (!gates.resume()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
  }
  return measured;
}

int run(const Options& options) {
  std::vector<std::unique_ptr<gpu::GpuAccess>> accesses;
  std::vector<gpu::Gates::Member> members;
  for (const pid_t pid : procfs::tree(options.root)) {
    auto access = gpu::open_access(pid);
    if (!access) continue;  // it uses no GPU
    accesses.push_back(std::move(*access));
    members.push_back({pid, accesses.back().get()});
  }
  gpu::Gates gates(std::move(members));
  Measured measured = measure(options, gates);
  auto& times = measured.closed_ms;
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times.empty()
               ? 0
               : times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  fmt::print(
      "processes={} closings={} failed={} stepped={} min_ms={:.1f} median_ms={:.1f} "
      "p90_ms={:.1f} p99_ms={:.1f} max_ms={:.1f}\n",
      accesses.size(), times.size(), measured.failed, measured.stepped, at(0), at(0.5), at(0.9),
      at(0.99), at(1));
  return measured.failed == 0 && !times.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gcr

int main(int argc, char** argv) {
  gcr::Options options;
  gcr::test::CommandLine line("Closes the gates of a job again and again while it works.");
  line.add("pid", options.root, "the job's root").within(1, 1 << 22);
  line.add("--closings", options.closings, "how often").positive();
  line.add("--pause-ms", options.pause_ms, "how long the gates are open in between");
  line.add("--timeout-ms", options.timeout_ms, "how long one closing may take").positive();
  line.parse(argc, argv);
  return gcr::run(options);
}

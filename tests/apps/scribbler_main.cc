// scribbler: holds VRAM and rewrites a given share of it per second, in pieces chosen at random by
// a seed. Before a piece is rewritten, and for all of VRAM every --check-every steps, the GPU
// compares every word with its expected value; a difference ends the program with status 1. Prints
// "step=<n> checksum=<hex>" at every step, over the compared data: an undisturbed run with the same
// options prints the same lines. SIGTERM ends it.
#include "src/base/units.h"
#include "tests/apps/pace.h"
#include "tests/apps/scribbler.h"
#include "tests/apps/stencil.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

struct Options {
  ScribblerOptions scribbler{.vram_bytes = 256 * kMiB, .piece_bytes = 2 * kMiB};
  double dirty_per_second = 0.10;
  double steps_per_second = 20;
  std::uint64_t check_every = 20;
  std::uint64_t churn = 0;
  std::uint64_t steps = 0;
  int device = 0;
};

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  Scribbler scribbler(gpu, options.scribbler);
  Pace pace(1000 / options.steps_per_second);
  double owed = 0;  // pieces; a fraction stays for the next step
  report(0, scribbler.check_all());
  for (std::uint64_t step = 1; options.steps == 0 || step <= options.steps; ++step) {
    if (termination_requested()) break;
    pace.begin_step();
    owed += static_cast<double>(scribbler.pieces()) * options.dirty_per_second /
            options.steps_per_second;
    const auto count = static_cast<std::uint64_t>(owed);
    owed -= static_cast<double>(count);
    std::uint64_t sum = scribbler.rewrite(count);
    if (options.churn != 0 && step % options.churn == 0) scribbler.replace_buffer();
    if (step % options.check_every == 0) sum += scribbler.check_all();
    report(step, sum);
    pace.end_step();
  }
  return 0;
}

void describe(gcr::test::CommandLine& line, Options& options) {
  line.add_size("--vram", options.scribbler.vram_bytes, "VRAM to hold (default 256M)");
  line.add_size("--piece", options.scribbler.piece_bytes,
                "how much is rewritten in one place, a power of two from 4K to 2M (default 2M)");
  line.add("--dirty-per-second", options.dirty_per_second,
           "the share of VRAM to rewrite per second")
      .within(0.0, 1000.0);
  line.add("--steps-per-second", options.steps_per_second, "the pace, if the GPU keeps it")
      .within(0.1, 10000.0);
  line.add("--zeros", options.scribbler.zeros, "the share of pieces filled with zeros")
      .within(0.0, 1.0);
  line.add("--churn", options.churn, "replace a buffer every so many steps (0: never)");
  line.add_flag("--by-copy", options.scribbler.by_copy, "write by copies from the host");
  line.add("--check-every", options.check_every, "compare all of VRAM every so many steps")
      .positive();
  line.add("--seed", options.scribbler.seed, "of all random choices");
  line.add("--steps", options.steps, "end after so many steps (0: never)");
  line.add("--device", options.device, "device ordinal");
}

/// Returns the mistake in the sizes, or "".
std::string fault_of(const ScribblerOptions& options) {
  const std::uint64_t piece = options.piece_bytes;
  if (piece < 4 * kKiB || piece > 2 * kMiB || (piece & (piece - 1)) != 0) {
    return "--piece is a power of two from 4K to 2M";
  }
  if (options.vram_bytes < 2 * kMiB) return "--vram is at least 2M";
  return "";
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Rewrites a share of its VRAM per second and checks all of it");
  gcr::apps::describe(line, options);
  line.parse(argc, argv);
  const std::string fault = gcr::apps::fault_of(options.scribbler);
  if (!fault.empty()) line.refuse(fault);
  options.scribbler.vram_bytes = options.scribbler.vram_bytes / (2 * gcr::kMiB) * (2 * gcr::kMiB);
  return gcr::apps::run(options);
}

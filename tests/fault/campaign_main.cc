// The random campaign: migrations, each with a random fault at a random time. Prints its seed; the
// same seed makes the same plan. Ends with status 0 if after each of them exactly one copy went on,
// or the process itself was what was killed, and nothing was left over.
#include <fmt/format.h>

#include <random>
#include <sstream>

#include "tests/fault/campaign.h"
#include "tests/fault/trials.h"
#include "tests/support/command_line.h"

int main(int argc, char** argv) {
  using namespace gcr::fault::test;
  TrialOptions options;
  std::uint64_t seed = std::random_device{}();
  std::size_t runs = 300;
  std::size_t first = 0;
  unsigned window_ms = 450;
  std::string file;
  gcr::test::CommandLine line("Runs migrations with random faults on pairs of hosts");
  line.add("--runs", runs, "how many migrations");
  line.add("--seed", seed, "of the plan (default: a random one)");
  line.add("--first", first, "begin with this run of the plan, counted from 0");
  line.add("--window-ms", window_ms, "faults strike within this time").positive();
  line.add("--pairs", options.pairs, "pairs of hosts side by side");
  line.add("--max-failures", options.max_failures, "then the rest is left out");
  line.add("--program", options.programs,
           "ticker, bare or ring (default: ticker and ring, pairs in turn)");
  line.add("--host-option", options.host_options, "words for scripts/hosts up");
  line.add("--out", file, "keep the figures in this file as well");
  line.add_flag("--verbose", options.verbose, "a line for every run");
  line.parse(argc, argv);
  const std::string title = fmt::format("campaign: seed={} window_ms={}\n", seed, window_ms);
  fmt::print(stderr, "{}", title);
  std::vector<Scenario> plan = campaign(seed, runs, Milliseconds(window_ms));
  plan.erase(plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(std::min(first, runs)));
  const std::vector<Done> done = run_all(plan, options);
  std::ostringstream text;
  text << title;
  print_campaign(text, done);
  publish(text.str(), file);
  return done.size() == plan.size() && failures_of(done) == 0 ? 0 : 1;
}

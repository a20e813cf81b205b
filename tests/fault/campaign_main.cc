// The random campaign: migrations, each with a random fault at a random time. Prints its seed; the
// same seed gives the same plan. Ends with status 0 if after each of them exactly one copy ran on,
// or the process itself was the one killed, and nothing was left over.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/fault/campaign.h"
#include "tests/fault/trials.h"
#include "tests/support/command_line.h"

namespace {

std::vector<std::string> shuffled_lines(const std::string& path, std::uint64_t seed) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
  }
  if (lines.empty()) throw std::runtime_error("no program in " + path);
  std::ranges::shuffle(lines, std::mt19937_64(seed));
  return lines;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gcr::fault::test;
  TrialOptions options;
  std::uint64_t seed = std::random_device{}();
  std::size_t runs = 300;
  std::size_t first = 0;
  unsigned window_ms = 450;
  std::string file;
  std::string list;
  bool spared = false;
  gcr::test::CommandLine line("Runs migrations with random faults on pairs of hosts");
  line.add("--runs", runs, "how many migrations");
  line.add("--seed", seed, "of the plan (default: a random one)");
  line.add("--first", first, "begin with this run of the plan, counted from 0");
  line.add("--window-ms", window_ms, "faults strike within this time").positive();
  line.add("--pairs", options.pairs, "pairs of hosts side by side");
  line.add("--max-failures", options.max_failures, "then the rest is left out");
  line.add("--program", options.programs, "ticker or ring (default: pairs in turn)");
  line.add("--programs-from", list,
           "instead, programs in this file, in random order, one a line: EXECUTABLE BEGIN PROOF "
           "COMMAND…: the file that its processes run, how the lines begin that count, how many "
           "show that it goes on, and how it is started");
  line.add("--runs-of-one", options.runs_of_one,
           "migrations of a program before the next (0: all)");
  line.add_flag("--spare", spared, "nothing kills the program, and half of the runs have no fault");
  line.add("--host-option", options.host_options, "words for scripts/hosts up");
  line.add("--out", file, "keep the figures in this file as well");
  line.add_flag("--verbose", options.verbose, "a line for every run");
  line.parse(argc, argv);
  if (!list.empty()) options.programs = shuffled_lines(list, seed);
  const std::string title = fmt::format("campaign: seed={} window_ms={}\n", seed, window_ms);
  fmt::print(stderr, "{}", title);
  std::vector<Scenario> plan = campaign(seed, runs, Milliseconds(window_ms), spared);
  plan.erase(plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(std::min(first, runs)));
  const std::vector<Done> done = run_all(plan, options);
  std::ostringstream text;
  text << title;
  print_campaign(text, done);
  publish(text.str(), file);
  return done.size() == plan.size() && failures_of(done) == 0 ? 0 : 1;
}

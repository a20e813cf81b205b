// The fault matrix: every fault point, with every harm that can happen there. Ends with status 0 if
// after each of them exactly one copy ran on and nothing was left over.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fault/matrix.h"
#include "tests/fault/program.h"
#include "tests/fault/trials.h"
#include "tests/support/command_line.h"

int main(int argc, char** argv) {
  using namespace gcr::fault::test;
  TrialOptions options;
  std::vector<std::string> filters;
  std::string file;
  std::size_t every = 1;
  gcr::test::CommandLine line("Runs the fault matrix on pairs of hosts");
  line.add("--pairs", options.pairs, "pairs of hosts side by side");
  line.add("--filter", filters, "only scenarios whose description has one of these in it");
  line.add("--every", every, "only each Nth scenario");
  line.add("--max-failures", options.max_failures, "then the rest is left out");
  line.add("--program", options.programs,
           "ticker, bare or ring (default: ticker and ring, pairs in turn)");
  line.add("--host-option", options.host_options, "words for scripts/hosts up");
  line.add("--out", file, "keep the table in this file as well");
  line.add_flag("--verbose", options.verbose, "a line for every run");
  line.parse(argc, argv);
  std::vector<Scenario> scenarios = matrix();
  std::erase_if(scenarios, [&filters](const Scenario& scenario) {
    const std::string text = scenario.describe();
    const auto is_in = [&text](const std::string& part) { return text.find(part) != text.npos; };
    return !filters.empty() && std::ranges::none_of(filters, is_in);
  });
  for (const std::string& name : options.programs) {
    const Program program = program_of(name);
    const auto passes_by = [&program](const std::string& point) {
      return std::ranges::find(program.passes_by, point) != program.passes_by.end();
    };
    std::erase_if(scenarios, [&](const Scenario& scenario) {
      return passes_by(scenario.point) || passes_by(scenario.then_point);
    });
  }
  std::size_t number = 0;
  std::erase_if(scenarios, [&](const Scenario&) { return number++ % every != 0; });
  const std::vector<Done> done = run_all(scenarios, options);
  std::ostringstream text;
  print_matrix(text, done);
  publish(text.str(), file);
  return done.size() == scenarios.size() && failures_of(done) == 0 ? 0 : 1;
}

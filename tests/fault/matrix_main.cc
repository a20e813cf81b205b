// The fault matrix: every fault point, with everything that can go wrong there. Ends with status 0
// if after each of them exactly one copy went on and nothing was left over.
#include <CLI/CLI.hpp>
#include <sstream>

#include "tests/fault/matrix.h"
#include "tests/fault/trials.h"

int main(int argc, char** argv) {
  using namespace gcr::fault::test;
  TrialOptions options;
  std::string filter;
  std::string file;
  CLI::App app("Runs the fault matrix on pairs of hosts");
  app.add_option("--pairs", options.pairs, "pairs of hosts side by side")->capture_default_str();
  app.add_option("--filter", filter, "only scenarios whose description has this in it");
  app.add_option("--max-failures", options.max_failures, "then the rest is left out")
      ->capture_default_str();
  app.add_option("--host-option", options.host_options, "words for scripts/hosts up");
  app.add_option("--out", file, "keep the table in this file as well");
  app.add_flag("--verbose", options.verbose, "a line for every run");
  CLI11_PARSE(app, argc, argv);
  std::vector<Scenario> scenarios = matrix();
  std::erase_if(scenarios, [&filter](const Scenario& scenario) {
    return scenario.describe().find(filter) == std::string::npos;
  });
  const std::vector<Done> done = run_all(scenarios, options);
  std::ostringstream text;
  print_matrix(text, done);
  publish(text.str(), file);
  return done.size() == scenarios.size() && failures_of(done) == 0 ? 0 : 1;
}

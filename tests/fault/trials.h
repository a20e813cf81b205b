// Many scenarios on several pairs of hosts concurrently, and the table of their results.
#pragma once

#include <algorithm>
#include <iosfwd>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/scenario.h"

namespace gcr::fault::test {

struct Done {
  Scenario scenario;
  Result result;
};

struct TrialOptions {
  unsigned pairs = std::clamp(std::thread::hardware_concurrency() / 4, 2U, 6U);
  unsigned max_failures = 10;                           ///< then the rest is skipped
  std::vector<std::string> programs{"ticker", "ring"};  ///< each pair moves one, in turn
  unsigned runs_of_one = 0;                             ///< then the pair is replaced; 0: never
  std::vector<std::string> host_options;                ///< of `scripts/hosts up`
  bool verbose = false;                                 ///< a line for every run
};

/// Runs them all, each on an idle pair, and returns them in their order, without the skipped ones.
/// A failure is printed to standard error at once, and costs its pair of hosts. Fails as a whole if
/// hosts cannot be created, or if hugepages are left: then a last one, with an empty scenario,
/// reports it.
std::vector<Done> run_all(const std::vector<Scenario>& scenarios, const TrialOptions& options);

/// How many did not pass.
std::size_t failures_of(const std::vector<Done>& done);

/// A row for each point, a column for each harm: where the process ran afterwards.
void print_matrix(std::ostream& out, const std::vector<Done>& done);

/// A row for each harm, and the values of all.
void print_campaign(std::ostream& out, const std::vector<Done>& done);

/// Prints the text, and writes it to `file` if that is not empty.
void publish(const std::string& text, const std::string& file);

}  // namespace gcr::fault::test

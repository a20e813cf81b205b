// Runs gcr-migrate to its end, with an environment of the test's choice.
#pragma once

#include <string>
#include <vector>

namespace gcr::cli::test {

struct Finished {
  int exit_status = -1;  ///< or 128 and the signal
  std::string out;
  std::string err;
};

/// Runs `words` with the variables of `environment` ("NAME=value") and no others.
Finished run(const std::vector<std::string>& words, const std::vector<std::string>& environment);

/// gcr-migrate with these arguments and an empty environment but for PATH.
Finished run_cli(const std::vector<std::string>& arguments);

}  // namespace gcr::cli::test

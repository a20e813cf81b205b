#include <fmt/format.h>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/device/cuda/driver.h"
#include "migrate-agent/roles/roles.h"

namespace gcr::agent {

std::vector<std::string> host_problems(const Config& config) {
  std::vector<std::string> problems;
  if (const auto driver = device::cuda::load(); !driver) {
    problems.push_back(driver.error().message());
  }
  if (const Status usable = criu::check(config.criu); !usable) {
    problems.push_back(usable.error().message());
  }
  return problems;
}

}  // namespace gcr::agent

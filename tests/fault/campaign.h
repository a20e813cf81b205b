// Random scenarios, the same for the same seed.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/fault/scenario.h"

namespace gcr::fault::test {

/// `runs` migrations, each with a random harm or none, at a random fault point or at a random time
/// up to `window` after the request. Run n does not depend on `runs`. If the program is spared,
/// nothing kills it, and about half of the runs have no harm.
std::vector<Scenario> campaign(std::uint64_t seed, std::size_t runs, Milliseconds window,
                               bool spared = false);

}  // namespace gcr::fault::test

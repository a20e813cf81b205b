// The scenarios of the matrix.
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace gcr::fault::test {

/// Every point of points.h: boundaries with each kind of harm, points of
/// the recovery after a crash that leads there, points that corrupt bytes, calls that fail.
std::vector<Scenario> matrix();

}  // namespace gcr::fault::test

// Sizes, offsets and values, listed twice: from our declarations and from cuda.h.
#pragma once

#include <cstddef>
#include <vector>

namespace gcr::preload {

struct AbiFact {
  const char* what;
  long long value;
};

std::vector<AbiFact> abi_facts_ours();
std::vector<AbiFact> abi_facts_theirs();

}  // namespace gcr::preload

// The names are cuda.h's own; the two declarations are never in one file.
#include <cuda.h>

#include "tests/preload/table/abi_facts.h"

namespace gcr::preload {

std::vector<AbiFact> abi_facts_theirs() {
  return {
#include "tests/preload/table/abi_facts.inc"
  };
}

}  // namespace gcr::preload

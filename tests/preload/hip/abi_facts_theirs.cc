// The names are HIP's own; the two declarations are never in one file.
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#include "tests/preload/table/abi_facts.h"

namespace gcr::preload {

std::vector<AbiFact> abi_facts_theirs() {
  return {
#include "tests/preload/hip/abi_facts.inc"
  };
}

}  // namespace gcr::preload

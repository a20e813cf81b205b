#include "preload/hip/abi/hip_abi.h"
#include "tests/preload/table/abi_facts.h"

namespace gcr::preload {

std::vector<AbiFact> abi_facts_ours() {
  return {
#include "tests/preload/hip/abi_facts.inc"
  };
}

}  // namespace gcr::preload

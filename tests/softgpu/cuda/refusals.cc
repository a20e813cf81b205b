#include "tests/softgpu/cuda/refusals.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace gcr::softgpu {

CUresult refusal_of(std::string_view call) {
  const char* store = std::getenv("SOFTGPU_STORE");
  if (store == nullptr || *store == '\0') return CUDA_SUCCESS;
  std::ifstream file(std::string(store) + "/refuse");
  std::string refused;
  int code = 0;
  while (file >> refused >> code) {
    if (refused == call) return static_cast<CUresult>(code);
  }
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu

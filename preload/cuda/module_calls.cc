// Variables of modules. A managed variable is managed memory without a call of cuMemAllocManaged.
#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/backing.h"

namespace gcr::preload::tracked {
namespace {

/// Notes the variable that the driver found; `address` is null if the caller asked only for the
/// size.
CUresult noted(CUresult result, const CUdeviceptr* address) {
  if (result == CUDA_SUCCESS && address != nullptr) note_variable(cuda(), *address);
  return result;
}

}  // namespace

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* size_bytes, CUmodule module,
                              const char* name) {
  return noted(real::cuModuleGetGlobal_v2(address, size_bytes, module, name), address);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* size_bytes, CUlibrary library,
                            const char* name) {
  return noted(real::cuLibraryGetGlobal(address, size_bytes, library, name), address);
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, std::size_t* size_bytes, CUlibrary library,
                             const char* name) {
  return noted(real::cuLibraryGetManaged(address, size_bytes, library, name), address);
}

}  // namespace gcr::preload::tracked

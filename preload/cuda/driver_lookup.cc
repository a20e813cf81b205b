// cuGetProcAddress, both forms, which statically linked runtimes and most frameworks use instead of
// dlsym. The call goes to the driver first, so that errors and status come from it; then the
// address that it returned is replaced by the shim of its row. A function that the table does not
// know is reported as not found.
#include <algorithm>

#include "preload/cuda/real_driver.h"
#include "preload/cuda/shims.h"

namespace gcr::preload {
namespace {

/// The address that the driver returns for `cuda_version`, or null.
void* ask(const RealDriver& driver, const char* symbol, int cuda_version, cuuint64_t flags) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      driver.cuGetProcAddress_v2 != nullptr
          ? driver.cuGetProcAddress_v2(symbol, &address, cuda_version, flags, &status)
          : driver.cuGetProcAddress(symbol, &address, cuda_version, flags);
  return result == CUDA_SUCCESS ? address : nullptr;
}

/// The address that the application gets instead of `address`: the shim, `address` itself if the
/// function needs no shim, or null if the table does not know it. A known name may have an
/// interface that is newer than the table; it must not be mistaken for an older one.
void* replace(const RealDriver& driver, const char* symbol, int cuda_version, cuuint64_t flags,
              void* address) {
  const int version = std::min(cuda_version, kTableCudaVersion);
  if (version == cuda_version || ask(driver, symbol, version, flags) == address) {
    const bool thread_stream = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const FunctionRow* row =
        find_looked_up(cuda_table(), &driver, symbol, version, thread_stream, address);
    if (row != nullptr) return row->shim;
    if (lookup_needs_no_shim(cuda_table(), symbol)) return address;
  }
  note_withheld(symbol);
  return nullptr;
}

}  // namespace
}  // namespace gcr::preload

using gcr::preload::RealDriver;

extern "C" CUresult cuGetProcAddress(const char* symbol, void** pfn, int cuda_version,
                                     cuuint64_t flags) {
  const RealDriver* driver = gcr::preload::real_driver();
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (driver->cuGetProcAddress == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = driver->cuGetProcAddress(symbol, pfn, cuda_version, flags);
  if (result == CUDA_SUCCESS && *pfn != nullptr) {
    *pfn = gcr::preload::replace(*driver, symbol, cuda_version, flags, *pfn);
    if (*pfn == nullptr) return CUDA_ERROR_NOT_FOUND;
  }
  return result;
}

extern "C" CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cuda_version,
                                        cuuint64_t flags,
                                        CUdriverProcAddressQueryResult* symbol_status) {
  const RealDriver* driver = gcr::preload::real_driver();
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (driver->cuGetProcAddress_v2 == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result =
      driver->cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, symbol_status);
  if (result == CUDA_SUCCESS && *pfn != nullptr) {
    *pfn = gcr::preload::replace(*driver, symbol, cuda_version, flags, *pfn);
    if (*pfn == nullptr && symbol_status != nullptr) {
      *symbol_status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
  }
  return result;
}

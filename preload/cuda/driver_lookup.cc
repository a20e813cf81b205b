// cuGetProcAddress, both forms: what statically linked runtimes and most frameworks use instead of
// dlsym. The driver is asked first, so that its refusals and its status stay its own; then its
// answer is replaced by the shim of the row that it means. What no table knows is answered as by a
// driver that lacks it.
#include <algorithm>

#include "preload/cuda/real_driver.h"
#include "preload/cuda/shims.h"
#include "preload/withheld.h"

namespace gcr::preload {
namespace {

/// What the driver gives for a version, or null.
void* ask(const RealDriver& driver, const char* symbol, int cuda_version, cuuint64_t flags) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      driver.cuGetProcAddress_v2 != nullptr
          ? driver.cuGetProcAddress_v2(symbol, &address, cuda_version, flags, &status)
          : driver.cuGetProcAddress(symbol, &address, cuda_version, flags);
  return result == CUDA_SUCCESS ? address : nullptr;
}

/// The address that the application gets in place of `address`: a shim, the same one where there is
/// none, or null for what the table does not know. That may be an interface of a known name that is
/// newer than the table, which must not be taken for an older one.
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

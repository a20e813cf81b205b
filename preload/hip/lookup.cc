// hipGetProcAddress and hipGetDriverEntryPoint. The call goes to HIP first, so that errors and
// status come from it; then the address that it returned is replaced by the shim of its row. HIP
// finds functions with dlsym, so the address may be a shim already.
#include <limits>

#include "preload/hip/real_hip.h"
#include "preload/hip/shims.h"

namespace gcr::preload {
namespace {

/// The address that the application gets instead of `address`, or null if the table does not know
/// the function. The requested version only selects among functions without a shim.
void* replace_hip(const RealHip& hip, const char* symbol, bool thread_stream, void* address) {
  const FunctionRow* row = find_looked_up(hip_table(), &hip, symbol,
                                          std::numeric_limits<int>::max(), thread_stream, address);
  if (row != nullptr) return row->shim;
  if (lookup_needs_no_shim(hip_table(), symbol)) return address;
  note_withheld(symbol);
  return nullptr;
}

/// Calls HIP's `function` with the arguments of the application, and replaces the address that it
/// finds.
template <class Function, class Status, class... Options>
hipError_t look_up(Function* RealHip::*function, bool thread_stream, Status not_found,
                   const char* symbol, void** address, Status* status, Options... options) {
  const RealHip* hip = real_hip();
  if (hip == nullptr) return hipErrorNotInitialized;
  if (hip->*function == nullptr) return hipErrorNotSupported;
  const hipError_t result = (hip->*function)(symbol, address, options..., status);
  if (result != hipSuccess || *address == nullptr) return result;
  *address = replace_hip(*hip, symbol, thread_stream, *address);
  if (*address != nullptr) return result;
  if (status != nullptr) *status = not_found;
  return hipErrorNotFound;
}

bool wants_thread_stream(unsigned long long flags) {
  return (flags & HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
}

}  // namespace
}  // namespace gcr::preload

using gcr::preload::RealHip;

extern "C" hipError_t hipGetProcAddress(const char* symbol, void** pfn, int hip_version,
                                        std::uint64_t flags,
                                        hipDriverProcAddressQueryResult* symbol_status) {
  return gcr::preload::look_up(
      &RealHip::hipGetProcAddress, gcr::preload::wants_thread_stream(flags),
      HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, symbol, pfn, symbol_status, hip_version, flags);
}

extern "C" hipError_t hipGetDriverEntryPoint(const char* symbol, void** func_ptr,
                                             unsigned long long flags,
                                             hipDriverEntryPointQueryResult* status) {
  return gcr::preload::look_up(&RealHip::hipGetDriverEntryPoint,
                               gcr::preload::wants_thread_stream(flags),
                               hipDriverEntryPointSymbolNotFound, symbol, func_ptr, status, flags);
}

extern "C" hipError_t hipGetDriverEntryPoint_spt(const char* symbol, void** func_ptr,
                                                 unsigned long long flags,
                                                 hipDriverEntryPointQueryResult* status) {
  return gcr::preload::look_up(&RealHip::hipGetDriverEntryPoint_spt, true,
                               hipDriverEntryPointSymbolNotFound, symbol, func_ptr, status, flags);
}

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

template <class Status, class Ask>
hipError_t look_up(const char* symbol, void** address, bool thread_stream, Status* status,
                   Status not_found, const Ask& ask) {
  const RealHip* hip = real_hip();
  if (hip == nullptr) return hipErrorNotInitialized;
  const hipError_t result = ask(*hip);
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
  return gcr::preload::look_up(symbol, pfn, gcr::preload::wants_thread_stream(flags), symbol_status,
                               HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, [&](const RealHip& hip) {
                                 return hip.hipGetProcAddress == nullptr
                                            ? hipErrorNotSupported
                                            : hip.hipGetProcAddress(symbol, pfn, hip_version, flags,
                                                                    symbol_status);
                               });
}

extern "C" hipError_t hipGetDriverEntryPoint(const char* symbol, void** func_ptr,
                                             unsigned long long flags,
                                             hipDriverEntryPointQueryResult* status) {
  return gcr::preload::look_up(symbol, func_ptr, gcr::preload::wants_thread_stream(flags), status,
                               hipDriverEntryPointSymbolNotFound, [&](const RealHip& hip) {
                                 return hip.hipGetDriverEntryPoint == nullptr
                                            ? hipErrorNotSupported
                                            : hip.hipGetDriverEntryPoint(symbol, func_ptr, flags,
                                                                         status);
                               });
}

extern "C" hipError_t hipGetDriverEntryPoint_spt(const char* symbol, void** func_ptr,
                                                 unsigned long long flags,
                                                 hipDriverEntryPointQueryResult* status) {
  return gcr::preload::look_up(
      symbol, func_ptr, true, status, hipDriverEntryPointSymbolNotFound, [&](const RealHip& hip) {
        return hip.hipGetDriverEntryPoint_spt == nullptr
                   ? hipErrorNotSupported
                   : hip.hipGetDriverEntryPoint_spt(symbol, func_ptr, flags, status);
      });
}

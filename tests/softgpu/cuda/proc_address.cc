// cuGetProcAddress: functions by public name and CUDA version. proc_table.inc lists this library's
// own functions; taking their addresses here, inside the library, means that a preloaded library's
// functions of the same names are not used.
#include <cstring>

#include "tests/softgpu/cuda/face.h"

#define SOFTGPU_PROC(public_name, since, symbol, per_thread_symbol) \
  extern "C" CUresult symbol();                                     \
  extern "C" CUresult per_thread_symbol();
#include "tests/softgpu/cuda/proc_table.inc"
#undef SOFTGPU_PROC

namespace gcr::softgpu {
namespace {

struct Proc {
  const char* name;
  int since;
  CUresult (*function)();
  CUresult (*per_thread)();
};

constexpr Proc kProcs[] = {
#define SOFTGPU_PROC(public_name, since, symbol, per_thread_symbol) \
  {#public_name, since, symbol, per_thread_symbol},
#include "tests/softgpu/cuda/proc_table.inc"
#undef SOFTGPU_PROC
};

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

/// The newest version not above `version`; null with the reason if there is none.
const Proc* find_proc(const char* name, int version, CUdriverProcAddressQueryResult* why) {
  const Proc* best = nullptr;
  *why = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Proc& proc : kProcs) {
    if (std::strcmp(proc.name, name) != 0) continue;
    if (best == nullptr) *why = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (proc.since > version || (best != nullptr && best->since > proc.since)) continue;
    best = &proc;
    *why = CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return best;
}

}  // namespace

SOFTGPU_API cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags);

SOFTGPU_API cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                                CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = version >= 12000 ? address_of(cuGetProcAddress_v2) : address_of(cuGetProcAddress);
    return CUDA_SUCCESS;
  }
  CUdriverProcAddressQueryResult why;
  const Proc* proc = find_proc(name, version, &why);
  if (status != nullptr) *status = why;
  *function = nullptr;
  if (proc == nullptr) return CUDA_SUCCESS;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *function = address_of(per_thread ? proc->per_thread : proc->function);
  return CUDA_SUCCESS;
}

SOFTGPU_API cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  const CUresult result = cuGetProcAddress_v2(name, function, version, flags, nullptr);
  return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}

/// Functions of a driver that is newer than each table of its functions.
SOFTGPU_API cuLaterThanEveryTable() { return CUDA_SUCCESS; }

}  // namespace gcr::softgpu
